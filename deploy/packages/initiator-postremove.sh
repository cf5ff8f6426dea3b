#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Not even a purge removes certificates.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
# A variant of the package may have taken its place.
if [ "$1" = purge ] && [ ! -e /usr/lib/sysusers.d/zc-relay-nbd.conf ]; then
    rmdir --ignore-fail-on-non-empty /etc/zc-relay/nbd /etc/zc-relay/ublk /etc/zc-relay 2>/dev/null || true
    user=zc-relay-client
    @REMOVE_USER@
fi
