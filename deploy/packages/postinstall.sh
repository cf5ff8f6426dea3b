#!/bin/sh
# After installation and upgrade. The daemon is neither enabled nor started: it
# has to be configured first. An upgrade does not restart it, because that
# pauses IO: whoever operates the machine chooses when.
set -e
systemd-sysusers @UNIT@.conf
systemd-tmpfiles --create @UNIT@.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl --quiet is-active @UNIT@.service; then
        echo "@UNIT@ goes on with the former version until: systemctl restart @UNIT@"
    fi
fi
