#!/bin/sh
# kcat is a Debian package; the tests that drive it need it. Those of Kerberos need a KDC, kcat's part for it, and the
# library gssapi, which is built for the Python that the first argument names; where they are not to be had, these tests
# are skipped. mkfs.ext4 and losetup are for tests on file systems that fail, ip and iptables for those in network namespaces:
# only root can run these. Installs what is missing where that is possible, else says what to do. Debian's package
# prometheus starts a server where it is installed, so its programs are only unpacked, into build/prometheus.
set -eu
missing=""
command -v kcat >/dev/null 2>&1 || missing="kcat"
if [ "$(id -u)" = 0 ]; then
    PATH="$PATH:/usr/sbin:/sbin"
    command -v mkfs.ext4 >/dev/null 2>&1 || missing="$missing e2fsprogs"
    command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
    command -v iptables >/dev/null 2>&1 || missing="$missing iptables"
    kerberos=""
    for each in krb5-kdc:krb5kdc krb5-admin-server:kadmin.local krb5-user:kinit libkrb5-dev:krb5-config gcc:gcc; do
        command -v "${each#*:}" >/dev/null 2>&1 || kerberos="$kerberos ${each%:*}"
    done
    ls /usr/lib/*/sasl2/libgssapiv2.so >/dev/null 2>&1 || kerberos="$kerberos libsasl2-modules-gssapi-mit"
    command -v losetup >/dev/null 2>&1 && command -v mount >/dev/null 2>&1 || missing="$missing mount"
fi
if [ -n "$missing${kerberos:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    [ -z "$missing" ] || apt-get install -y -qq $missing >/dev/null
    # shellcheck disable=SC2086
    [ -z "$kerberos" ] || apt-get install -y -qq $kerberos >/dev/null ||
        echo "tests: no KDC can be installed: nothing of Kerberos is tested" >&2
fi
unpack_prometheus() (
    mkdir -p build/prometheus && cd build/prometheus && rm -f prometheus_*.deb &&
        apt-get download -qq -o APT::Sandbox::User=root prometheus >/dev/null && dpkg --extract prometheus_*.deb . &&
        rm prometheus_*.deb
)
if ! command -v promtool >/dev/null 2>&1 && [ ! -x build/prometheus/usr/bin/promtool ] &&
    command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1; then
    unpack_prometheus 2>/dev/null || { [ "$(id -u)" = 0 ] && apt-get update -qq && unpack_prometheus; } ||
        echo "tests: Prometheus cannot be unpacked: nothing is tested with it" >&2
fi
if [ -n "${1:-}" ] && command -v krb5-config >/dev/null 2>&1 && command -v gcc >/dev/null 2>&1; then
    "$1" -c "import gssapi" >/dev/null 2>&1 || "$1" -m pip install --quiet --editable '.[kerberos]' ||
        echo "tests: gssapi cannot be built: nothing of Kerberos is tested" >&2
fi
command -v kcat >/dev/null 2>&1 && exit 0
echo "tests: kcat is missing (Debian: apt-get install kcat; macOS: brew install kcat)" >&2
exit 1
