"""Publish a checkpoint with its scores: `python -m eval.report.push CHECKPOINT REPO --results results/RUN`.

One commit has the weights, code, processor and the card. The Hub's own client uploads, retries and finds the token
(`hf auth login` or HF_TOKEN).
"""

import argparse
import json
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from eval.report.card import model_card
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.hub_folder import MODEL_FILES, is_hub_id, processor_files, upload
from modeling_aligned_llava.loading.hub import hub_errors_named


RECORDED_FILES = ("norm_parameters.json", "norm_profile.json")


def published_files(checkpoint: Path) -> dict[str, Path | bytes]:
    """Name on the Hub -> file of a checkpoint folder, or its content: no settings, logs or optimizer states.

    Raises:
        UserError: weights, code or the processor are missing.
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
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        if not is_hub_id(part.get("_name_or_path", "")):
            part.pop("_name_or_path", None)
    return files | processor | {"config.json": (json.dumps(config, indent=2) + "\n").encode()}


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
    card = model_card(args.checkpoint, args.results, args.repository)
    files = published_files(args.checkpoint) | {"README.md": str(card).encode()}
    if args.dry_run:
        print(card)  # noqa: T201
        for name, content in sorted(files.items()):
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            print(f"{size:>14,}  {name}")  # noqa: T201
        return
    with hub_errors_named(f"cannot publish {args.repository}"):
        url = upload(files, args.repository, private=args.private or None, revision=args.revision)
    print(f"published: {url}")  # noqa: T201


if __name__ == "__main__":
    run_main(main)
