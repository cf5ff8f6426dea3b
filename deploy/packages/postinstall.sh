#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs after installation and upgrade. It neither enables nor starts the daemon, which has to be
# configured first. An upgrade does not restart a running daemon, because a restart pauses IO: the
# operator chooses when.
set -e
systemd-sysusers @UNIT@.conf
if [ -e /proc/self ]; then
    systemd-tmpfiles --create @UNIT@.conf
else
    # systemd-tmpfiles needs /proc, which those who build images need not mount.
    while read -r kind path mode owner group _; do
        case $kind in
        d) install -d -m "$mode" -o "$owner" -g "$group" "$path" ;;
        z)
            chown "$owner:$group" "$path"
            chmod "$mode" "$path"
            ;;
        esac
    done </usr/lib/tmpfiles.d/@UNIT@.conf
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl --quiet is-active @UNIT@.service; then
        echo "@UNIT@ keeps running the previous version until: systemctl restart @UNIT@"
    fi
fi
