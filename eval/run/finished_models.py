"""The trained models of a run's folder."""

from pathlib import Path


def finished_models(run: Path) -> dict[str, Path]:
    """Method -> checkpoint of its last stage, `baseline` first, then by name; methods still in training are absent."""
    folders = {path.parent.parent.name: path.parent for path in run.glob("checkpoints/*/stage2/config.json")}
    return {name: folders[name] for name in sorted(folders, key=lambda name: (name != "baseline", name))}
