#!/bin/sh
# kcat is a Debian package; the tests that drive it need it. Installs it where that is possible, else says what to do.
set -eu
command -v kcat >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    apt-get install -y -qq kcat >/dev/null
    exit 0
fi
echo "tests: kcat is missing (Debian: apt-get install kcat; macOS: brew install kcat)" >&2
exit 1
