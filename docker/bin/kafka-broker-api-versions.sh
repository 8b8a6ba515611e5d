#!/bin/sh
# Kafka's command that health checks use: here `kraftpy ping`, which asks the broker and prints one line.
set -eu
if [ "${1:-}" != --bootstrap-server ] || [ $# -ne 2 ]; then
    echo "usage: kafka-broker-api-versions.sh --bootstrap-server HOST:PORT" >&2
    exit 1
fi
exec kraftpy ping --bootstrap-server "$2"
