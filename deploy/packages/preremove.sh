#!/bin/sh
# dpkg says "remove", rpm how many versions are left: 0 is a removal, anything
# else an upgrade.
set -e
case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl --quiet disable --now @UNIT@.service
    fi
    ;;
esac
