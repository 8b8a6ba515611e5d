#!/bin/sh
# Chromium, for the tests in a browser. Where it is missing, root on Debian installs Debian's. Else it says what is missing.
set -eu
[ -z "${KRAFTPY_CHROMIUM:-}" ] || exit 0
[ -x /usr/bin/chromium ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
    exit 0
fi
echo "tests/console: missing: chromium (Debian: apt-get install chromium; elsewhere: KRAFTPY_CHROMIUM=/path/to/it)" >&2
exit 1
