#!/bin/sh
# Fills docker/wheelhouse with what the image installs, for a build that can reach no package index.
#
#   PYTHON=python3      an interpreter with pip, 3.11 or later; the wheels are for the image's interpreter in any case
#   MACHINE=x86_64      the image's processor: x86_64 or aarch64; this machine's by default
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
machine=${MACHINE:-$(uname -m | sed 's/^arm64$/aarch64/')}
house=docker/wheelhouse

# The package that the index has as source alone. It is pure Python: a wheel built here fits everywhere.
source_only=$("$python" -c '
import re, tomllib
wanted = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
print("\n".join(line for line in wanted if re.match(r"pysyncobj\b", line)))
')

rm -f "$house"/*.whl
if [ -n "$source_only" ]; then
    "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$house" "$source_only"
fi
"$python" -m pip --disable-pip-version-check download --quiet --dest "$house" --find-links "$house" \
    --only-binary=:all: --implementation cp --python-version 3.11 \
    --platform "manylinux2014_$machine" --platform "manylinux_2_28_$machine" '.[metrics]' 'hatchling>=1.24'
echo "$house: $(ls "$house"/*.whl | wc -l) wheels for CPython 3.11 on $machine"
