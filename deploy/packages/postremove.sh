#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
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
    # Channels that were added by command are configuration.
    if [ @UNIT@ = zc-relay ] && [ -d /var/lib/zc-relay ]; then
        rm -f /var/lib/zc-relay/channels.yaml /var/lib/zc-relay/channels.yaml.new \
            /var/lib/zc-relay/channels.lock
        rmdir --ignore-fail-on-non-empty /var/lib/zc-relay
    fi
    if [ ! -e /var/lib/@UNIT@ ]; then
        for user in @USERS@; do
            @REMOVE_USER@
        done
    fi
fi
