#!/bin/sh
# Volumes are the operator's data. Not even a purge removes volumes or certificates, or the user who
# owns them while any exist.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    for directory in @DIRECTORIES@ /etc/zc-relay; do
        rmdir --ignore-fail-on-non-empty "$directory" 2>/dev/null || true
    done
    if [ ! -e /var/lib/@UNIT@ ]; then
        for user in @USERS@; do
            if getent passwd "$user" >/dev/null; then
                userdel "$user"
            fi
        done
    fi
fi
