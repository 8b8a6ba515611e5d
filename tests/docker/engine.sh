#!/bin/sh
# A Docker engine and compose, for the tests that need them. Where none is there, root on Debian installs Debian's; the
# tests start the daemon themselves. Else it says what is missing.
set -eu
missing=
command -v dockerd >/dev/null 2>&1 || docker info >/dev/null 2>&1 || missing="$missing docker.io"
docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null 2>&1 || missing="$missing docker-compose"
# The base image is made of Debian's packages where it cannot be pulled.
command -v debootstrap >/dev/null 2>&1 || missing="$missing debootstrap"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    # shellcheck disable=SC2086 # several packages
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing iptables >/dev/null
    exit 0
fi
echo "tests/docker: missing:$missing (Debian: apt-get install$missing)" >&2
exit 1
