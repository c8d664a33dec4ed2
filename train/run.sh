#!/usr/bin/env bash
# Trains both stages of one method. Safe to run again: a finished stage is skipped, an unfinished one resumes from its
# last checkpoint.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: train/run.sh --backbone NAME --method NAME [--seed 42] [--output-root results/tinyworld]
                    [--stage NAME] [--vision-tower PATH] [--language-model PATH] [-- SETTING ...]

  --backbone     folder under configuration/train: tinyworld, llama-3.2-3b, qwen2.5-7b
  --method       a name in configuration/methods.yaml: baseline, norm, norm-gwc, ...
  --seed         seed of the projector, the data order and training (default 42)
  --output-root  run folder (default results/<backbone>); data is read from ROOT/data (stage1.json, stage2.json,
                 images/), checkpoints go to ROOT/checkpoints/METHOD/stage{1,2} for seed 42, and to
                 ROOT/checkpoints/METHOD-seedN/stage{1,2} for another
  --stage        only stage1 or stage2 (default: both)
  --vision-tower, --language-model
                 folders or Hub ids of other backbones than the recipe's
  -- SETTING ... further settings for every stage, e.g. `-- --max_steps 10`
Relative paths are relative to the root of the repository.
For several processes: LAUNCH="accelerate launch" train/run.sh ...   (default: one python process)
HELP
}

backbone= method= seed=42 root=
towers=() stages=(stage1 stage2)
while [ $# -gt 0 ]; do
  case "$1" in
    --backbone) backbone="${2:?--backbone needs a name}"; shift 2 ;;
    --method) method="${2:?--method needs a name}"; shift 2 ;;
    --seed) seed="${2:?--seed needs a number}"; shift 2 ;;
    --output-root) root="${2:?--output-root needs a folder}"; shift 2 ;;
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
recipes="configuration/train/$backbone"
if [ ! -d "$recipes" ]; then
  echo "error: no backbone $backbone; there are: $(ls configuration/train | xargs)" >&2
  exit 1
fi
root="${root:-results/$backbone}"
name="$method"
[ "$seed" = 42 ] || name="$method-seed$seed"
launch=(.venv/bin/python)
[ -x "${launch[0]}" ] || launch=(python3)
[ -z "${LAUNCH:-}" ] || read -ra launch <<<"$LAUNCH"

for stage in "${stages[@]}"; do
  from=("${towers[@]}")
  [ "$stage" = stage1 ] || from=(--model_name_or_path "$root/checkpoints/$name/stage1")
  "${launch[@]}" -m train.sft --config "$recipes/$stage.yaml" --method "$method" --seed "$seed" \
    --data_path "$root/data/$stage.json" --image_folder "$root/data/images" \
    --output_dir "$root/checkpoints/$name/$stage" "${from[@]}" "$@"
done
