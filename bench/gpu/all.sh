#!/usr/bin/env bash
# The measurements of docs/measurements.md on a GPU, one after the other; results below $OUT.
#   SITE=<where SGLang is unpacked> OUT=<folder> bash bench/gpu/all.sh [fa3|triton] [NAME ...]
# Each ends by its own limit and keeps what it has by then; NAMEs pick some of
# graphs switch flips plain adaptive recovery.
set -u
backend=${1:-fa3}
shift || true
. "$(dirname "$0")/host.sh"
mkdir -p "$OUT/logs"
fields=(--server-arg "attention_backend=$backend" --server-arg sampling_backend=pytorch
  --server-arg grammar_backend=none --logs "$OUT/logs" --json)
chosen=("$@")
[ $# -gt 0 ] || chosen=(graphs switch flips plain recovery adaptive)

bench() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$2
  shift 2
  timeout "$seconds" python3 -c 'from spec_fsm_sglang.bench.cli import app; app()' "$@" \
    "${fields[@]}" >"$OUT/$name-$backend.json" 2>"$OUT/$name-$backend.txt"
  echo "$name: exit code $?"
  tail -n 12 "$OUT/$name-$backend.txt"
}

for name in "${chosen[@]}"; do
  case $name in
    graphs) bench graphs 280 graphs --requests 24 ;;
    switch) SGLANG_SIMULATE_ACC_LEN=3.0 bench switch 500 switch --device cuda --model llama-8b \
      --spec 3/1/4 --requests 8,32 --gaps 64,72,256 --cycles 24 --profile 24 ;;
    flips) bench flips 240 switch --device cuda --requests 8 --gaps 64 --cycles 3 --flips 10000 ;;
    plain) bench plain 500 plain --device cuda --model llama-8b --spec 3/1/4 \
      --requests 1,8,32,64,128,256 --blocks 5 --iterations 256 ;;
    adaptive) bench adaptive 400 plain --device cuda --model llama-8b --spec 3/1/4 \
      --requests 1,32,128,256 --blocks 2 --iterations 128 --adaptive ;;
    recovery) bench recovery 400 recovery --device cuda --gaps 16,64,256,1024 --requests 1,8,32 \
      --rounds 1360 ;;
    *) echo "$name: accepted are graphs switch flips plain adaptive recovery" >&2 ;;
  esac
done
