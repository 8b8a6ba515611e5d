# The image `kraftpy` with a wall clock that can be set wrong while it runs, for compose.chaos.yaml:
#
#   docker build -f docker/chaos.Dockerfile -t kraftpy-chaos docker
#
# libfaketime reads the offset in seconds ("+3600", "-0.5") from /chaos/clock whenever a process reads the time. The
# monotonic clock and the times of files stay right.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS clock
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libfaketime

FROM kraftpy
COPY --from=clock /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/local/lib/libfaketime.so
ENV LD_PRELOAD=/usr/local/lib/libfaketime.so FAKETIME_TIMESTAMP_FILE=/chaos/clock FAKETIME_NO_CACHE=1 \
    FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1
