#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs after installation and upgrade. It neither enables nor starts a gateway, which needs settings
# first, and restarts none.
set -e
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers zc-relay-nbd.conf
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
