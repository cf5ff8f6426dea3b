#!/bin/sh
# Runs after installation and upgrade. It neither enables nor starts the daemon, which has to be
# configured first. An upgrade does not restart a running daemon, because a restart pauses IO: the
# operator chooses when.
set -e
systemd-sysusers @UNIT@.conf
systemd-tmpfiles --create @UNIT@.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl --quiet is-active @UNIT@.service; then
        echo "@UNIT@ keeps running the previous version until: systemctl restart @UNIT@"
    fi
fi
