#!/bin/sh
# The relay's package has the same user, so a purge removes it only if that is not installed.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    rmdir --ignore-fail-on-non-empty /etc/zc-relay 2>/dev/null || true
    if [ ! -e /usr/lib/sysusers.d/zc-relay.conf ] && getent passwd zc-relay-client >/dev/null; then
        userdel zc-relay-client
    fi
fi
