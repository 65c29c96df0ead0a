#!/usr/bin/env bash
# What graphs could make wrong, on a GPU: bench/gpu/truth.py in the surroundings of all.sh.
#   SITE=<where SGLang is unpacked> OUT=<folder> bash bench/gpu/truth.sh [ARGUMENT of truth.py ...]
set -u
. "$(dirname "$0")/host.sh"
export SPEC_FSM_STRICT=1
mkdir -p "$OUT/logs"
python3 bench/gpu/truth.py "$OUT/truth-gpu.json" "$@" 2>&1 | tee "$OUT/truth.txt"
code=${PIPESTATUS[0]}
cp /tmp/tmp*/*.log "$OUT/logs/" 2>/dev/null
tar cJf "$OUT/logs.tar.xz" -C "$OUT" logs && rm -r "$OUT/logs"
exit "$code"
