#!/usr/bin/env bash
# Builds every fuzz target (*_fuzz.cc) and runs each for some seconds (default 60), from its seeds in tests/fuzz/NAME and
# what earlier runs found in build/corpus/NAME. Ends in the number that passed and failed; a finding leaves its input in
# build/corpus.  --counts FILE: add the counts to FILE, as tools/run_tests.py --carry does.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60 counts=
while [ $# -gt 0 ]; do
  case "$1" in
    --counts) counts=$2; shift 2 ;;
    *) seconds=$1; shift ;;
  esac
done
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target fuzzers
passed=0 failed=0
for program in build/fuzz/*_fuzz; do
  name=$(basename "$program")
  corpus=build/corpus/$name
  mkdir -p "$corpus"
  seeds=(); [ -d "tests/fuzz/$name" ] && seeds=("tests/fuzz/$name")
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="build/corpus/$name-" "$corpus" "${seeds[@]}" >"build/corpus/$name.log" 2>&1; then
    echo "$name: no finding in $seconds s"
    passed=$((passed + 1))
  else
    echo "$name: FAILED"
    tail -n 60 "build/corpus/$name.log"
    failed=$((failed + 1))
  fi
done
if [ -n "$counts" ]; then
  python3 - "$counts" "$passed" "$failed" <<'PY'
import json, os, sys
path, passed, failed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
totals = json.load(open(path)) if os.path.exists(path) else [0, 0, 0]
json.dump([totals[0] + passed, totals[1] + failed, totals[2]], open(path, "w"))
PY
else
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
fi
