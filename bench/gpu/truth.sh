#!/usr/bin/env bash
# What graphs could make wrong, on a GPU: bench/gpu/truth.py in the surroundings of all.sh.
#   SITE=<where SGLang is unpacked> OUT=<folder> bash bench/gpu/truth.sh [ARGUMENT of truth.py ...]
set -u
. "$(dirname "$0")/host.sh"
export SPEC_FSM_STRICT=1
python3 bench/gpu/truth.py "$OUT/truth-gpu.json" "$@" 2>&1 | tee "$OUT/truth.txt"
exit "${PIPESTATUS[0]}"
