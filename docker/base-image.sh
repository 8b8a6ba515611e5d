#!/bin/sh
# Makes the Dockerfile's base image from Debian's packages, if no image registry can be reached.
#
#   sudo docker/base-image.sh [NAME]       NAME defaults to python:3.11-slim-bookworm
#
# It needs root, debootstrap (Debian: apt-get install debootstrap), a Docker engine and a Debian mirror. The image stands
# in for the one of that name: Debian bookworm with Python 3.11 as `python3` and `python`, pip and venv.
#
#   DEBIAN_MIRROR=http://deb.debian.org/debian     where the packages come from
set -eu

name=${1:-python:3.11-slim-bookworm}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

for needed in debootstrap docker tar; do
    command -v "$needed" >/dev/null || { echo "base-image.sh: $needed is missing" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "base-image.sh: debootstrap needs root: run it with sudo" >&2; exit 1; }

work=$(mktemp -d)
root=$work/root
trap 'umount "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv bookworm "$root" "$mirror" \
    >"$work/log" || { tail -n 20 "$work/log" >&2; exit 1; }

# As the image it stands in for: the commands in /usr/local/bin, and a pip that may install into the system.
ln -s /usr/bin/python3 "$root/usr/local/bin/python3"
ln -s /usr/bin/python3 "$root/usr/local/bin/python"
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

# Remove files that are never read in a container. The licences in /usr/share/doc stay.
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/* "$root"/var/log/* "$root"/usr/share/man/* \
    "$root"/usr/share/locale/* "$root"/usr/share/info/*
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root" -xdev -name __pycache__ -type d -prune -exec rm -rf {} +

tar --one-file-system --numeric-owner -C "$root" -c . | docker import \
    --change 'CMD ["python3"]' \
    --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
    - "$name" >/dev/null
echo "base-image.sh: made $name, $(docker image inspect --format '{{.Size}}' "$name" | awk '{printf "%d MB", $1 / 1e6}')"
