"""Publish a checkpoint with its scores: `python -m eval.report.push CHECKPOINT REPO --results results/RUN`.

One commit has the weights, code, processor, the card and, for benchmarks that the Hub lists, `.eval_results`. The
Hub's own client uploads, retries and finds the token (`hf auth login` or HF_TOKEN).
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from eval.data.benchmarks import BY_KEY, Benchmark
from eval.report.card import MeasuredScores, measured_scores, model_card
from modeling_aligned_llava.aligned_family import ADAPTER_SETTINGS
from modeling_aligned_llava.errors import UserError, errors_named, run_main
from modeling_aligned_llava.hub_folder import MODEL_FILES, is_hub_id, processor_files, upload
from modeling_aligned_llava.loading.files import read_json


RECORDED_FILES = ("norm_parameters.json", "norm_profile.json")


def published_files(checkpoint: Path) -> dict[str, Path | bytes]:
    """Name on the Hub -> file of a checkpoint folder, or its content: no settings, logs or optimizer states.

    Raises:
        UserError: weights, code or the processor are missing, or adapters belong to a model on this machine.
    """
    files: dict[str, Path | bytes] = {
        path.relative_to(checkpoint).as_posix(): path
        for pattern in (*MODEL_FILES, *RECORDED_FILES)
        for path in sorted(checkpoint.glob(pattern))
    }
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    for needed in ("*.safetensors", *(["modeling_aligned_llava.py"] if "auto_map" in config else [])):
        if not any(Path(name).match(needed) for name in files):
            raise UserError(f"{checkpoint} has no {needed}: save the model there with save_pretrained")
    processor = {path.relative_to(checkpoint).as_posix(): path for path in processor_files(checkpoint)}
    if not processor:
        raise UserError(f"{checkpoint} has no processor: save it there with processor.save_pretrained")
    below = (read_json(checkpoint / ADAPTER_SETTINGS) or {}).get("base_model_name_or_path", "")
    if below and not is_hub_id(below):
        raise UserError(f"{checkpoint} holds adapters of {below}, which others lack: train with --merge_adapters true")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        if not is_hub_id(part.get("_name_or_path", "")):
            part.pop("_name_or_path", None)
    return files | processor | {"config.json": (json.dumps(config, indent=2) + "\n").encode()}


def result_files(scores: MeasuredScores, repository: str) -> dict[str, bytes]:
    """`.eval_results/KEY.yaml` of every official score whose data set the Hub lists as a benchmark; the card's
    `model-index` has the others too.

    Raises:
        UserError: the Hub cannot be asked.
    """
    record = scores.record
    files = {}
    for cell in scores.cells if scores.official else ():
        if cell["status"] != "ok" or cell["benchmark"] not in BY_KEY:
            continue
        benchmark = BY_KEY[cell["benchmark"]]
        if (task := _listed_task(benchmark)) is None:
            continue
        settings = record.get("settings", {})
        entry = EvalResultEntry(
            benchmark.folder,
            task,
            round(cell["score"], 2),
            source_url=f"https://huggingface.co/{repository}",
            source_name=f"modeling_aligned_llava {version('modeling-aligned-llava')}",
            notes=f"{benchmark.harness} {record['versions'].get(benchmark.harness, '')}, {benchmark.task}, "
            f"{benchmark.shots} shots, {settings.get('decoding', 'greedy')} decoding, {settings.get('dtype', '')}; "
            "settings in the model card",
        )
        text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False)
        files[f".eval_results/{benchmark.key}.yaml"] = text.encode()
    return files


def _listed_task(benchmark: Benchmark) -> str | None:
    """The id of the benchmark's task in the eval.yaml of its data set, which makes it one of the Hub's benchmarks; of
    several, the one of the same split.
    """
    try:
        with errors_named(f"cannot read eval.yaml of {benchmark.folder}"):
            try:
                file = hf_hub_download(benchmark.folder, "eval.yaml", repo_type="dataset")
            except (EntryNotFoundError, RepositoryNotFoundError):
                return None
        tasks = yaml.safe_load(Path(file).read_text(encoding="utf-8"))["tasks"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"eval.yaml of {benchmark.folder} is not as the Hub describes it: {error}") from error
    same = [task for task in tasks if task.get("split") == benchmark.split] if len(tasks) > 1 else tasks
    return str(same[0]["id"]) if len(same) == 1 else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.report.push", description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("repository", help="repository to publish it in, owner/name")
    parser.add_argument("--results", required=True, type=Path, help="run that evaluated it, e.g. results/tinyworld")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--revision", help="branch to commit to (default: main)")
    parser.add_argument("--dry-run", action="store_true", help="print the card and the files without uploading")
    args = parser.parse_args()
    try:
        validate_repo_id(args.repository)
    except HFValidationError as error:
        raise UserError(f"{args.repository} is not a repository name: {error}") from error
    scores = measured_scores(args.checkpoint, args.results)
    card = model_card(args.checkpoint, scores, args.repository)
    files = published_files(args.checkpoint) | {"README.md": str(card).encode()}
    files |= result_files(scores, args.repository)
    if args.dry_run:
        print(card)  # noqa: T201
        for name, content in sorted(files.items()):
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            print(f"{size:>14,}  {name}")  # noqa: T201
        return
    with errors_named(f"cannot publish {args.repository}"):
        url = upload(files, args.repository, private=args.private or None, revision=args.revision)
    print(f"published: {url}")  # noqa: T201


if __name__ == "__main__":
    run_main(main)
