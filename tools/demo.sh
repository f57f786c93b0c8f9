#!/usr/bin/env bash
# ./run demo                serve models/demo on 127.0.0.1:8000 (CADRE_PORT for another) and say what to try
# ./run demo --ask "TEXT"   the same server on a free port, one chat answer, streamed; then stop it
set -euo pipefail
cd "$(dirname "$0")/.."
cadre=build/release/cadre
# Four ranks: data-parallel attention, expert parallelism.
layout=(--tp-size 4 --dp-size 4 --enable-dp-attention --ep-size 4)
if [ "${1:-}" != --ask ]; then
  port=${CADRE_PORT:-8000}
  cat <<TXT

Try, from another terminal:

  curl http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "demo", "messages": [{"role": "user", "content": "What is a violin?"}]}'

  pip install openai; python3 - <<'PY'
  from openai import OpenAI
  client = OpenAI(base_url="http://127.0.0.1:$port/v1", api_key="none")
  for chunk in client.chat.completions.create(model="demo", stream=True,
          messages=[{"role": "user", "content": "What is a violin?"}]):
      print(chunk.choices[0].delta.content or "", end="", flush=True)
  PY

  $cadre ask http://127.0.0.1:$port "What is a violin?"

TXT
  exec "$cadre" serve models/demo --served-model-name demo --port "$port" "${layout[@]}" "$@"
fi
[ $# -ge 2 ] || { echo "./run demo --ask: expected a question after it, found none" >&2; exit 2; }
log=$(mktemp)
"$cadre" serve models/demo --served-model-name demo --port 0 "${layout[@]}" >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 300); do
  url=$(grep -o 'http://127.0.0.1:[0-9]*' "$log" | head -n 1 || true)
  [ -n "$url" ] && break
  kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not start within 30 s:" >&2; cat "$log" >&2; exit 1; }
"$cadre" ask "$url" "$2"
