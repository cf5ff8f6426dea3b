# SPDX-License-Identifier: Apache-2.0
#
# Another package may need the user. Its number, and its group's, may be given to somebody else, who
# must not inherit a key that is left.
if ! grep -qs "^u $user " /usr/lib/sysusers.d/*.conf && getent passwd "$user" >/dev/null; then
    if [ -d /etc/zc-relay ]; then
        find /etc/zc-relay -xdev \( -user "$user" -o -group "$user" \) ! -type l \
            -exec chmod go= {} + -exec chown root:root {} +
    fi
    userdel "$user"
fi
