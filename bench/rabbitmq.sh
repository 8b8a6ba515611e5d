#!/bin/sh
# `make bench-paper` runs a RabbitMQ node of its own from Debian's package. Installs it where that is possible, else says what
# to do. The package's service is neither started nor enabled, since it would take its share of the machine.
set -eu
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends rabbitmq-server >/dev/null
    ! command -v systemctl >/dev/null 2>&1 || systemctl disable --quiet rabbitmq-server
    exit 0
fi
echo "bench-paper: RabbitMQ is missing (Debian: apt-get install --no-install-recommends rabbitmq-server)" >&2
exit 1
