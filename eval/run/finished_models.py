"""The vision-language models of a run's folder, and the data they were evaluated on."""

from pathlib import Path

from eval.run.files import read_json
from modeling_aligned_llava.loading.checkpoint import sees_images


def finished_models(run: Path) -> dict[str, Path]:
    """Name -> checkpoint: of what the run has trained, the last stage; and what it was given with `--models`.

    `baseline` comes first, then by name; methods still in training are absent.
    """
    recorded = (read_json(run / "run.json") or {}).get("models", {})
    given = {name: Path(model["path"]) for name, model in recorded.items()}
    folders = {name: path for name, path in given.items() if (path / "config.json").exists() and sees_images(path)}
    folders |= {path.parent.parent.name: path.parent for path in run.glob("checkpoints/*/stage2/config.json")}
    return {name: folders[name] for name in sorted(folders, key=lambda name: (name != "baseline", name))}


def data_root(run: Path) -> Path:
    """The data root that was evaluated, or the one inside the run if that is gone."""
    recorded = (read_json(run / "run.json") or {}).get("data", {}).get("root")
    return Path(recorded) if recorded and Path(recorded).is_dir() else run / "data" / "mirrors"
