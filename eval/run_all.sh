#!/usr/bin/env bash
# The whole comparison with one command: train the methods, evaluate them on nine benchmarks, print the paper's Table 4.
# Its options: eval/options.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for name in HF_HOME XDG_CACHE_HOME; do [ -n "${!name-}" ] || unset "$name"; done # empty, they put caches right here

python=.venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
"$python" -m eval.options "$@" # ends with what is wrong, before anything is installed
[[ " $* " != *" --help "* && " $* " != *" -h "* ]] || exit 0

printf '\n== 1 set-up\n'
make --silent install
export PATH=$PWD/.venv/bin:$PATH OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# Huge pages save 5 % of the time where the kernel provides them on demand; results do not change.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
exec python -m eval.run_all "$@"
