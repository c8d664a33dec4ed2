"""Where the checkpoints and the data of a run are now: where they were recorded, or in its folder if that is gone."""

from pathlib import Path
from typing import Any

from modeling_aligned_llava.loading.checkpoint import sees_images
from modeling_aligned_llava.loading.files import read_json


def read_record(run: Path) -> dict[str, Any]:
    """The run's run.json, empty if there is none."""
    return read_json(run / "run.json") or {}


def finished_models(run: Path) -> dict[str, Path]:
    """Name -> checkpoint of every vision-language model that the run has trained or was given with `--models`.

    `baseline` comes first, then by name; methods still in training are absent.
    """
    record = read_record(run)
    trained = {path.parent.parent.name for path in run.glob("checkpoints/*/stage2/config.json")}
    found = {name: find_checkpoint(run, record, name) for name in trained | set(record.get("models", {}))}
    ready = {name: path for name, path in found.items() if path and (path / "config.json").exists()}
    seeing = {name: path for name, path in ready.items() if name in trained or sees_images(path)}
    return {name: seeing[name] for name in sorted(seeing, key=lambda name: (name != "baseline", name))}


def find_checkpoint(run: Path, record: dict[str, Any], name: str) -> Path | None:
    """A model's checkpoint: where it was evaluated, or its last stage in the run's folder."""
    recorded = record.get("models", {}).get(name, {}).get("path")
    return _first_folder(recorded, run / "checkpoints" / name / "stage2")


def find_data_root(run: Path, record: dict[str, Any]) -> Path | None:
    """The data root that was evaluated, or the one inside the run."""
    return _first_folder(record.get("data", {}).get("root"), run / "data" / "mirrors")


def _first_folder(recorded: str | None, inside: Path) -> Path | None:
    candidates = [*([Path(recorded)] if recorded else []), inside]
    return next((folder for folder in candidates if folder.is_dir()), None)
