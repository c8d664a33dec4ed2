#!/usr/bin/env bash
# The whole comparison with one command: train the methods, evaluate them on nine benchmarks, print the paper's Table 4.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for name in HF_HOME XDG_CACHE_HOME; do [ -n "${!name-}" ] || unset "$name"; done # empty, they put caches right here

usage() {
    cat <<'HELP'
bash eval/run_all.sh [options]

Without options: builds tinyworld, trains the methods baseline, norm and norm-gwc on it, evaluates them and the bare
language model on the nine benchmarks of the paper's Table 4, and prints that table. It takes about 14 minutes on two
CPU cores after the installation (once, about 4 minutes, the only part that needs a network). A trained model is
evaluated while others are trained, one process per core (of two) or GPU. Library output goes to logs/. A failed step
or Ctrl-C stops everything. After a kill, the same command continues; run again when finished, it changes nothing.

  --backbone NAME             recipes under configuration/train to train (default: tinyworld). smollm2-135m, a real
                              decoder, makes its data too; others need --data and take --training-data DIR, as --data
                              of train/run.sh
  --methods M [M ...]         methods to train, from configuration/methods.yaml (default: baseline norm norm-gwc)
  --seeds N [N ...]           seeds to train each method with (default: 42)
  --run NAME                  write everything to results/NAME (default: tinyworld)
  --baseline NAME             the method to compare the others with (default: the first)

To evaluate existing checkpoints on the real benchmarks, without training, give local copies of the datasets (one
folder each, ROOT/org/name/, as `python -m eval.data fetch ROOT` downloads them):

  --models NAME=PATH [...]    checkpoints to evaluate
  --data ROOT                 folder of the datasets
  --run NAME                  default with --models: custom

How to evaluate, for both:

  --tasks T [T ...]           some benchmarks only; results that are there stay (default: the nine)
  --limit N                   a trial on the first N rows of each, written to results/NAME/limit-N, without tables
  --dtype NAME                float32, bfloat16 or float16 (default: bfloat16 on a GPU, float32 without)
  --batch-size N              rows per forward pass (default: 64)
  --jobs N                    processes side by side (default: one per GPU, two without)
  --no-shared-prefix          compute every row alone, as the stock harnesses do
  --trust-remote-code         run model code found in a checkpoint

  --help                      this text

In results/NAME: run.json (settings, versions, hardware, weight hashes), data/, checkpoints/, logs/, answers/, harness/,
scores.json, tables/table4.{md,tex,csv}, figures/table4.svg, diagnostics/, and report.html: one page with the scores,
norms, attention, training curves, example answers and settings. Open it in a browser; it needs no network.
HELP
}

fail() {
    echo "error: $*" >&2
    exit 1
}

# ---------------------------------------------------------------------------------------------------------------------
# Options: every mistake is found before any work starts.

METHODS=() SEEDS=() MODELS=() EVALUATION=() RUN="" DATA="" TRAINING_DATA="" BASELINE="" BACKBONE=""
while (($#)); do
    option=$1
    shift
    values=()
    while (($#)) && [[ $1 != --* ]]; do
        values+=("$1")
        shift
    done
    case $option in
        --help) usage && exit 0 ;;
        --methods) METHODS=("${values[@]}") ;;
        --seeds) SEEDS=("${values[@]}") ;;
        --models) MODELS=("${values[@]}") ;;
        --run) RUN=${values[0]:-} ;;
        --data) DATA=${values[0]:-} ;;
        --baseline) BASELINE=${values[0]:-} ;;
        --backbone) BACKBONE=${values[0]:-} ;;
        --training-data) TRAINING_DATA=${values[0]:-} ;;
        --no-shared-prefix | --trust-remote-code)
            ((${#values[@]} == 0)) || fail "$option takes no value"
            EVALUATION+=("$option") && continue
            ;;
        --limit | --batch-size | --jobs)
            [[ ${values[0]:-1} =~ ^[1-9][0-9]*$ ]] || fail "$option ${values[0]}: not a number from 1"
            EVALUATION+=("$option" "${values[@]}")
            ;;
        --tasks | --dtype) EVALUATION+=("$option" "${values[@]}") ;;
        *) fail "unknown option $option; bash eval/run_all.sh --help lists them" ;;
    esac
    ((${#values[@]})) || fail "$option needs a value"
    [[ $option =~ ^--(methods|seeds|models|tasks)$ ]] || ((${#values[@]} == 1)) ||
        fail "$option takes one value, not ${#values[@]}"
done

if ((${#MODELS[@]})); then
    [[ -n $DATA ]] || fail "--models needs --data ROOT, the folder of the datasets"
    ((${#METHODS[@]} + ${#SEEDS[@]} == 0)) || fail "--models evaluates existing checkpoints; --methods and --seeds train"
    [[ -z $BACKBONE$TRAINING_DATA ]] || fail "--models evaluates existing checkpoints; --backbone and --training-data train"
    [[ -d $DATA ]] || fail "--data $DATA: no such folder"
    for model in "${MODELS[@]}"; do
        [[ $model == ?*=?* ]] || fail "--models $model: expected NAME=PATH"
        [[ -f ${model#*=}/config.json ]] || fail "--models ${model%%=*}: no checkpoint (config.json) in ${model#*=}"
    done
else
    BACKBONE=${BACKBONE:-tinyworld}
    [[ -d configuration/train/$BACKBONE ]] || fail "--backbone $BACKBONE: configuration/train has" $(ls configuration/train)
    if [[ -f configuration/train/$BACKBONE/world.yaml ]]; then
        [[ -z $DATA$TRAINING_DATA ]] || fail "--data needs --models NAME=PATH or another --backbone; $BACKBONE makes its own data"
    else
        [[ -d $DATA ]] || fail "--backbone $BACKBONE needs --data ROOT, the folder of the benchmarks"
        [[ -z $TRAINING_DATA || -d $TRAINING_DATA ]] || fail "--training-data $TRAINING_DATA: no such folder"
    fi
    ((${#METHODS[@]})) || METHODS=(baseline norm norm-gwc)
    ((${#SEEDS[@]})) || SEEDS=(42)
    BASELINE=${BASELINE:-${METHODS[0]}}
    known=$(sed -n 's/^\([a-z][a-z0-9-]*\):.*/\1/p' configuration/methods.yaml)
    for method in "${METHODS[@]}"; do
        grep -qxF -- "$method" <<<"$known" || fail "unknown method $method; configuration/methods.yaml has:" $known
    done
    for seed in "${SEEDS[@]}"; do
        [[ $seed =~ ^[0-9]+$ ]] || fail "--seeds $seed: not a whole number"
    done
    [[ " ${METHODS[*]} " == *" $BASELINE "* ]] || fail "--baseline $BASELINE: not among the methods (${METHODS[*]})"
fi
[[ -n $RUN ]] || { ((${#MODELS[@]})) && RUN=custom || RUN=$BACKBONE; }
[[ $RUN =~ ^[A-Za-z0-9._-]+$ && $RUN != .* ]] || fail "--run $RUN: a name of letters, digits and . _ - for a folder under results/"
OUT=results/$RUN
mkdir -p "$OUT/logs"

# One run per folder. Child processes inherit the lock: steps that outlive a killed run finish first, so that two runs
# never write the same files.
exec 9>"$OUT/.lock"
"${PYTHON:-python3}" - "$OUT" <<'LOCK' || fail "could not lock $OUT"
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print(f"An earlier run still works in {sys.argv[1]}; waiting for it (end it yourself, or let it finish).", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
LOCK

export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# Huge pages save 5 % of the time where the kernel provides them on demand; results do not change.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}

# Pass Ctrl-C and SIGTERM on to the running command, and wait until it has stopped its own children.
child=
stop() {
    trap "" INT TERM
    if [[ -z $child ]] || { kill -TERM "$child" 2>/dev/null && wait "$child"; }; then # nobody else says it
        echo "error: stopped by SIG$1; the same command starts again or continues" >&2
    fi
    exit 130
}
trap 'stop INT' INT
trap 'stop TERM' TERM
attend() {
    local status=0
    "$@" &
    child=$!
    wait "$child" || status=$?
    child=
    return "$status"
}

# Set-up: install everything into .venv. Once, about 4 minutes and 7 GB.
printf '\n== 1 set-up\n'
attend make --silent install
PATH=$PWD/.venv/bin:$PATH

# Data, training and evaluation on all cores or GPUs, tables, report.
if ((${#MODELS[@]})); then
    attend python -m eval.run_all --run "$OUT" --models "${MODELS[@]}" --data "$DATA" \
        ${BASELINE:+--baseline "$BASELINE"} "${EVALUATION[@]}"
else
    attend python -m eval.run_all --run "$OUT" --methods "${METHODS[@]}" --seeds "${SEEDS[@]}" --baseline "$BASELINE" \
        --backbone "$BACKBONE" ${DATA:+--data "$DATA"} ${TRAINING_DATA:+--training-data "$TRAINING_DATA"} \
        "${EVALUATION[@]}"
fi
