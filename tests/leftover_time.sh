#!/bin/sh
# Run a command in the processor time that nothing else wants: tests/leftover_time.sh COMMAND ...
#
# Linux divides time among sessions first, and heeds `nice` within each. The tests' nodes have sessions of their own: so
# the command gets one too, and the whole of it is nice.
set -eu
command -v setsid >/dev/null 2>&1 || exec nice -n 19 "$@"
nice -n 19 setsid sh -c 'echo 19 2>/dev/null >/proc/self/autogroup || :; exec "$@"' sh "$@" &
command=$!
trap 'kill -TERM "-$command"' INT TERM HUP
wait $command
