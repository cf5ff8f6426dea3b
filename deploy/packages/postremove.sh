#!/bin/sh
# Volumes are data of the user: not even a purge removes them, nor certificates,
# nor the user that they belong to as long as there are any.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    for directory in @DIRECTORIES@ /etc/zc-relay; do
        rmdir --ignore-fail-on-non-empty "$directory" 2>/dev/null || true
    done
    if [ ! -e /var/lib/@UNIT@ ] && getent passwd @UNIT@ >/dev/null; then
        userdel @UNIT@
    fi
fi
