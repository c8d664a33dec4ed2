#!/usr/bin/env bash
# What a GPU is measured with, one part after the other; about 12 minutes on an H200, and a Markdown table at the end.
#   bash benchmarks/gpu.sh [--device cuda|cpu] [--shape 3b|toy] [--out FOLDER] [--parts "tests train_stage1"]
#
# It needs no network and no installation of this repository. A folder `site-packages` beside the repository is read
# too: for a machine that has torch, accelerate, peft, pyarrow and pytest alone, fill it elsewhere from the wheels of
# transformers, trl, datasets, multiprocess, dill, gguf and, for eval_throughput, lm_eval, lmms_eval, decord, evaluate,
# zstandard, pytz, loguru, tenacity, python-dotenv, defusedxml, sniffio. Only under that name does `datasets` work:
#   pip install --no-index --no-deps --target ../site-packages WHEELS/*.whl
set -euo pipefail

usage() { sed -n '2,3s/^# *//p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
all='tests train_stage1 train_stage2 eval_throughput recipe_run'
device=cuda shape=3b out='' parts=$all
while [ $# -gt 0 ]; do
    case "$1 ${2-}" in
    '--device cuda' | '--device cpu') device=$2 ;;
    '--shape 3b' | '--shape toy') shape=$2 ;;
    '--out '?*) out=$(realpath -m "$2") ;;
    '--parts '?*) parts=$2 ;;
    *) usage ;;
    esac
    shift 2
done
for name in $parts; do [[ " $all " == *" $name "* ]] || usage; done
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$PWD/.venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HOME=$work/huggingface HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
[ ! -d ../site-packages ] || PYTHONPATH=$PWD:$(cd ../site-packages && pwd)${PYTHONPATH#"$PWD"}
dtype=bfloat16 rounds=2 patience=1
if [ "$device" = cpu ]; then
    export CUDA_VISIBLE_DEVICES=
    dtype=float32 rounds=1 patience=5 out=${out:-$(mktemp -d)}
    parts=${parts/tests/}
fi
if [ "$device" = cuda ]; then
    name=$("$python" -c 'import torch; print(torch.cuda.get_device_name().lower().removeprefix("nvidia "))' 2>/dev/null) ||
        { echo 'error: torch finds no GPU; without one, give --device cpu --shape toy' >&2 && exit 2; }
    out=${out:-$PWD/benchmarks/results/${name// /-}}
fi
mkdir -p "$out"

ends=() failed=0 running=''
trap '[ -z "$running" ] || { kill "$running" && wait "$running"; } || :; exit 130' INT TERM
part() { # NAME SECONDS COMMAND...
    local name=$1 limit=$(($2 * patience)) status=0 start=$SECONDS end=passed
    shift 2
    [[ " $parts " == *" $name "* ]] || return 0
    printf '\n== %s\n' "$name"
    TMPDIR=$work timeout --kill-after=10 "$limit" "$python" -m "$@" </dev/null &
    running=$!
    wait "$running" || status=$?
    running=''
    rm -rf "${work:?}"/* # what a part that was stopped left
    [ "$status" = 0 ] || failed=1 end="failed with $status"
    [ "$status" != 124 ] || end="stopped at its limit of $limit s"
    ends+=("$name=$end, $((SECONDS - start)) s")
    printf '== %s\n' "${ends[-1]/=/: }"
}

part tests 180 pytest -p no:cacheprovider tests/gpu
for stage in 1 2; do
    part "train_stage$stage" $((120 + 150 * stage)) benchmarks.train_throughput --device "$device" --shape "$shape" \
        --stages "$stage" --rounds "$rounds" --out "$out/train_stage$stage.json"
done
part eval_throughput 240 benchmarks.eval_throughput --device "$device" --shape "$shape" --dtype "$dtype" --rounds 1 \
    --max-new-tokens 8 --columns pope mmlu_5shot --out "$out/eval_throughput.json"
part recipe_run 240 benchmarks.recipe_run --device "$device" --shape "$shape" --out "$out/recipe_run.json"

printf '\n%s\n\n' "$out"
"$python" -m benchmarks.gpu_table "$out" "${ends[@]}"
exit "$failed"
