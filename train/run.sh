#!/usr/bin/env bash
# Trains both stages of one method. Safe to run again: a finished stage is skipped, an unfinished one resumes from its
# last checkpoint.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: train/run.sh --backbone NAME --method NAME [--seed 42] [--output-root results/tinyworld] [--data DIR]
                    [--data-stage1 DATA] [--data-stage2 DATA] [--stage NAME] [--prepare | --preflight]
                    [--vision-tower PATH] [--language-model PATH] [-- SETTING ...]

  --backbone     folder under configuration/train: tinyworld, llama-3.2-3b, qwen2.5-7b
  --method       a name in configuration/methods.yaml: baseline, norm, norm-gwc, ...
  --seed         seed of the projector, the data order and training (default 42)
  --output-root  run folder (default results/<backbone>); checkpoints go to ROOT/checkpoints/METHOD/stage{1,2} for
                 seed 42, and to ROOT/checkpoints/METHOD-seedN/stage{1,2} for another
  --data         folder of both stages' data: stage1 and stage2, each a .json, .jsonl, .parquet or .yaml file or a
                 folder of parquet files, and images/ (default: ROOT/data if there is one, otherwise the recipe's)
  --data-stage1, --data-stage2
                 data of one stage: whatever --data_path of train.sft accepts, such as a Hub id
  --stage        only stage1 or stage2 (default: both)
  --prepare      only check and tokenize the data, which needs no GPU; training then finds it
  --preflight    only check whether both stages can run, what memory and disk they need, and how long they take;
                 options of `python -m train.preflight` may follow --, such as `-- --processes 8 --gpu h100`
  --vision-tower, --language-model
                 folders or Hub ids of other backbones than the recipe's
  -- SETTING ... further settings for every stage, e.g. `-- --max_steps 10`
Relative paths are relative to the root of the repository.
For several processes: LAUNCH="accelerate launch" train/run.sh ...   (default: one python process)
HELP
}

backbone= method= seed=42 root= data= only=
towers=() stages=(stage1 stage2)
declare -A data_path=()
while [ $# -gt 0 ]; do
  case "$1" in
    --backbone) backbone="${2:?--backbone needs a name}"; shift 2 ;;
    --method) method="${2:?--method needs a name}"; shift 2 ;;
    --seed) seed="${2:?--seed needs a number}"; shift 2 ;;
    --output-root) root="${2:?--output-root needs a folder}"; shift 2 ;;
    --data) data="${2:?--data needs a folder}"; shift 2 ;;
    --data-stage1 | --data-stage2) data_path[${1#--data-}]="${2:?$1 needs a file, folder or Hub id}"; shift 2 ;;
    --prepare) only="train.data prepare"; shift ;;
    --preflight) only=train.preflight; shift ;;
    --stage)
      stages=("${2:?--stage needs stage1 or stage2}"); shift 2
      [[ ${stages[0]} == stage[12] ]] || { echo "error: --stage ${stages[0]}: stage1 or stage2" >&2; exit 1; }
      ;;
    --vision-tower) towers+=(--vision_tower "${2:?--vision-tower needs a path}"); shift 2 ;;
    --language-model) towers+=(--language_model "${2:?--language-model needs a path}"); shift 2 ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) echo "error: unknown argument $1; see train/run.sh --help" >&2; exit 1 ;;
  esac
done
if [ -z "$backbone" ] || [ -z "$method" ]; then
  echo "error: --backbone and --method are needed; see train/run.sh --help" >&2
  exit 1
fi

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$repository"
for name in HF_HOME XDG_CACHE_HOME; do [ -n "${!name-}" ] || unset "$name"; done # empty, they put caches right here
recipes="configuration/train/$backbone"
if [ ! -d "$recipes" ]; then
  echo "error: no backbone $backbone; there are: $(ls configuration/train | xargs)" >&2
  exit 1
fi
root="${root:-results/$backbone}"
name="$method"
[ "$seed" = 42 ] || name="$method-seed$seed"
[ -n "$data" ] || [ ! -d "$root/data" ] || data="$root/data"
python=(.venv/bin/python)
[ -x "${python[0]}" ] || python=(python3)
launch=("${python[@]}")
[ -z "${LAUNCH:-}" ] || read -ra launch <<<"$LAUNCH"

# Pass Ctrl-C and SIGTERM on to the running command, and wait until it has saved what it can.
child=
stop() {
  trap "" INT TERM
  if [ -z "$child" ] || { kill -TERM "$child" 2>/dev/null && wait "$child"; }; then # nobody else says it
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

find_data() {
  for ending in .json .jsonl .parquet .yaml ""; do
    if [ -e "$data/$1$ending" ]; then
      echo "$data/$1$ending"
      return
    fi
  done
  echo "error: $data has no $1: a .json, .jsonl, .parquet or .yaml file or a folder of parquet files" >&2
  return 1
}

if [ -n "$data" ]; then
  for stage in "${stages[@]}"; do # before the first one starts
    [ -n "${data_path[$stage]:-}" ] || data_path[$stage]="$(find_data "$stage")"
  done
fi

failed=
for stage in "${stages[@]}"; do
  settings=(--config "$recipes/$stage.yaml" --method "$method" --seed "$seed")
  settings+=(--output_dir "$root/checkpoints/$name/$stage")
  [ -z "${data_path[$stage]:-}" ] || settings+=(--data_path "${data_path[$stage]}")
  [ -z "$data" ] || settings+=(--image_folder "$data/images")
  [ "$stage" = stage1 ] || settings+=(--model_name_or_path "$root/checkpoints/$name/stage1")
  if [ -n "$only" ]; then
    from=("${towers[@]}") # a checkpoint of stage 1 brings its own
    [ "$stage" = stage1 ] || from+=(--stage1 "$recipes/stage1.yaml")
    [ "$stage" = stage1 ] || [ ! -e "$root/checkpoints/$name/stage1/config.json" ] || from=()
    # shellcheck disable=SC2086  # a module and its command
    attend "${python[@]}" -m $only "${settings[@]}" "${from[@]}" "$@" || failed=yes # the next stage is looked at too
  else
    [ "$stage" != stage1 ] || settings+=("${towers[@]}")
    attend "${launch[@]}" -m train.sft "${settings[@]}" "$@"
  fi
done
[ -z "$failed" ]
