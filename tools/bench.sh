#!/usr/bin/env bash
# The demo model and a dummy 1.7 B Qwen3-MoE against this machine's limits. Arguments go to both runs (--threads N).
set -euo pipefail
cd "$(dirname "$0")/.."
build/release/model_bench --model models/demo "$@"
build/release/model_bench --dummy bench/configs/qwen3_moe_1.7b.json "$@"
