#!/bin/sh
# Kafka's command for topics, with the options that compose files use. It runs `kraftpy topic`, and prints its output.
set -eu

action='' servers='' topic=''
wrong() {
    echo "kafka-topics.sh: $1 is not known here; known are --bootstrap-server, --list, --create, --describe, --alter," \
        "--delete, --topic, --partitions, --replication-factor, --config, --if-not-exists, --if-exists" >&2
    exit 1
}
turns=$#
while [ "$turns" -gt 0 ]; do
    option=$1 value=''
    shift
    turns=$((turns - 1))
    case $option in
        --*=*) value=${option#*=} option=${option%%=*} ;;
        --list | --create | --describe | --alter | --delete | --if-not-exists | --if-exists) ;;
        *)
            [ "$turns" -gt 0 ] || wrong "$option without a value"
            value=$1
            shift
            turns=$((turns - 1))
            ;;
    esac
    # Options that are passed on go to the end of the arguments.
    case $option in
        --list | --create | --describe | --alter | --delete) action=${option#--} ;;
        --bootstrap-server) servers=$value ;;
        --topic) topic=$value ;;
        --partitions | --replication-factor | --config) set -- "$@" "$option" "$value" ;;
        --if-not-exists | --if-exists) set -- "$@" "$option" ;;
        *) wrong "$option" ;;
    esac
done
[ -n "$action" ] || { echo "kafka-topics.sh: give one of --list, --create, --describe, --alter, --delete" >&2; exit 1; }
exec kraftpy topic "$action" ${topic:+"$topic"} ${servers:+--bootstrap-server "$servers"} "$@"
