#!/usr/bin/env bash
# Everything `./run test` does after installing packages: build, run, count.
set -euo pipefail
cd "$(dirname "$0")/.."
counts=build/test_counts.json
mkdir -p build
rm -f "$counts"
for preset in release asan tsan; do
  cmake --preset $preset >/dev/null
done
cmake --build build/release
python3 tools/run_tests.py --carry "$counts" build/release
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
"$python" tests/openai/test_client.py build/release/cadre --counts "$counts"
python3 tests/processes/lost_ranks.py build/release --counts "$counts"
python3 tests/processes/balancing.py build/release --counts "$counts"
python3 tests/netns/two_hosts.py build/release --counts "$counts"
cmake --build build/asan
python3 tools/run_tests.py --carry "$counts" build/asan
# Only where threads meet.
threaded=base,kernels,comm,dp,server
for name in ${threaded//,/ }; do
  if cmake --build build/tsan --target help | grep -q "^${name}_test:"; then cmake --build build/tsan --target "${name}_test"; fi
done
python3 tools/run_tests.py --carry "$counts" --only "$threaded" build/tsan
tools/fuzz.sh --counts "$counts" 1
python3 tools/lint.py
exec python3 tools/run_tests.py --total "$counts"
