#!/usr/bin/env bash
# Trains both stages of one method. Its options: train/run.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for name in HF_HOME XDG_CACHE_HOME; do [ -n "${!name-}" ] || unset "$name"; done # empty, they put caches right here
python=.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" -m train.run "$@"
