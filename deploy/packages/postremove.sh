#!/bin/sh
# Volumes are the operator's data. Not even a purge removes volumes or certificates, or the user who
# owns volumes.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
# A variant of the package may have taken its place.
if [ "$1" = purge ] && [ ! -e /usr/lib/sysusers.d/@UNIT@.conf ]; then
    for directory in @DIRECTORIES@ /etc/zc-relay; do
        rmdir --ignore-fail-on-non-empty "$directory" 2>/dev/null || true
    done
    if [ ! -e /var/lib/@UNIT@ ]; then
        for user in @USERS@; do
            @REMOVE_USER@
        done
    fi
fi
