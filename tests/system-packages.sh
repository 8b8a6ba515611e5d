#!/bin/sh
# kcat is a Debian package; the tests that drive it need it. mkfs.ext4 and losetup are for tests on file systems that
# fail, ip and iptables for those in network namespaces: only root can run these. Installs what is missing where that is
# possible, else says what to do.
set -eu
missing=""
command -v kcat >/dev/null 2>&1 || missing="kcat"
if [ "$(id -u)" = 0 ]; then
    PATH="$PATH:/usr/sbin:/sbin"
    command -v mkfs.ext4 >/dev/null 2>&1 || missing="$missing e2fsprogs"
    command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
    command -v iptables >/dev/null 2>&1 || missing="$missing iptables"
    command -v losetup >/dev/null 2>&1 && command -v mount >/dev/null 2>&1 || missing="$missing mount"
fi
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq $missing >/dev/null
    exit 0
fi
command -v kcat >/dev/null 2>&1 && exit 0
echo "tests: kcat is missing (Debian: apt-get install kcat; macOS: brew install kcat)" >&2
exit 1
