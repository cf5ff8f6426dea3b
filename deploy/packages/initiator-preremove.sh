#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dpkg passes "remove". rpm passes the number of versions that remain: 0 for a removal, otherwise an
# upgrade.
set -e
case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl --quiet stop 'zc-relay-nbd@*.socket' 'zc-relay-nbd@*.service' \
            'zc-relay-ublk@*.service'
    fi
    ;;
esac
