"""Every table and figure of the diagnostics for all models of a finished run, in RUN/diagnostics."""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.data.benchmarks import BY_KEY
from eval.data.image_sample import SAMPLE, in_benchmarks
from eval.report.finished_run import FinishedRun
from modeling_aligned_llava.diagnostics.attention import attention, draw_maps, show_attention
from modeling_aligned_llava.diagnostics.dynamics import draw_training, read_training, write_dynamics
from modeling_aligned_llava.diagnostics.embeddings import embedding_tables, show_embeddings
from modeling_aligned_llava.diagnostics.encoders import encoder_norms, show_encoders
from modeling_aligned_llava.diagnostics.gradients import gradients, show_gradients
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion
from modeling_aligned_llava.diagnostics.instruments.models import load, tokenizer_of
from modeling_aligned_llava.diagnostics.instruments.tables import show_table
from modeling_aligned_llava.diagnostics.instruments.token_statistics import mean_interval
from modeling_aligned_llava.diagnostics.parameters import norm_statistics, show_parameters
from modeling_aligned_llava.diagnostics.profile import profile_loaded, show_norms
from modeling_aligned_llava.diagnostics.theory import predicted_rotation, show_prediction
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.inspection.norm_parameters import alignment_norm
from modeling_aligned_llava.loading.checkpoint import sees_images
from modeling_aligned_llava.loading.files import read_json, write_json


ENCODED = 60  # images for the norms of the vision encoder
DIFFERENTIATED = 16  # images for the gradients, which take three passes each


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.diagnose_run", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as results/tinyworld")
    parser.add_argument("--methods", nargs="+", help="methods to measure, the reference first (default: all)")
    parser.add_argument("--limit", type=int, default=200, help="number of images for the profile (default 200)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoints")
    parser.add_argument("--out", type=Path, help="folder for the results (default RUN/diagnostics)")
    diagnose(parser.parse_args())


def diagnose(arguments: argparse.Namespace) -> None:
    folder, out = arguments.run, arguments.out or arguments.run / "diagnostics"
    checkpoints = _checkpoints(folder, arguments.methods)
    root = _recorded(folder).data
    if root is None:
        raise UserError(f"{folder}: the data that its models were evaluated on is gone")
    there = tuple(key for key in SAMPLE if (root / BY_KEY[key].folder).is_dir())
    sample = in_benchmarks(root, arguments.limit, keys=there or SAMPLE)
    profiles: dict[str, dict[str, Any]] = {}
    static = _StaticTables()
    for method, checkpoint in checkpoints.items():
        model, processor = load(str(checkpoint), arguments.trust_remote_code)
        profiles[method] = profile_loaded(str(checkpoint), model, processor, sample, out / method / "profile.json")
        show_norms(profiles[method], out / method / "norms.md")
        _intervene(method, model, processor, sample, out / method)
        static.add(method, model, processor, sample)
    write_dynamics(profiles, out)
    differences = asymmetry(profiles)
    show_asymmetry(differences, out / "asymmetry.md")
    write_json(out / "asymmetry.json", differences)
    static.write(out)
    probes = {method: checkpoint.parent / "stage1" / "probe.jsonl" for method, checkpoint in checkpoints.items()}
    runs = {method: read_training(path) for method, path in probes.items() if path.is_file()}
    if runs:
        draw_training(runs, out / "figure5.svg")
    for measured in profiles.values():
        show_prediction(measured)
    write_json(out / "predictions.json", {method: predicted_rotation(profile) for method, profile in profiles.items()})
    print(f"all tables and figures are in {out}")  # noqa: T201


def finished_models(run: Path) -> dict[str, Path]:
    """Name -> checkpoint of every vision-language model that the run has trained or was given with `--models`.

    `baseline` comes first, then by name; methods still in training are absent.
    """
    recorded = _recorded(run)
    trained = {path.parent.parent.name for path in run.glob("checkpoints/*/stage2/config.json")}
    folders = {name: recorded.checkpoint(name) for name in trained | set(recorded.record.get("models", {}))}
    ready = {name: folder for name, folder in folders.items() if folder and (folder / "config.json").exists()}
    seeing = {name: folder for name, folder in ready.items() if name in trained or sees_images(folder)}
    return {name: seeing[name] for name in sorted(seeing, key=lambda name: (name != "baseline", name))}


def _recorded(run: Path) -> FinishedRun:
    """The run without its scores, which it may not have yet."""
    return FinishedRun(run, [], read_json(run / "run.json") or {})


def _checkpoints(folder: Path, methods: list[str] | None) -> dict[str, Path]:
    """The checkpoints of the named methods, in their order; of all methods without names."""
    found = finished_models(folder)
    for method in methods or ():
        if method not in found:
            raise UserError(
                f"--methods {method}: {folder} has no checkpoint of it (it has: {', '.join(found) or '-'})"
            )
    if not found:
        raise UserError(f"{folder} is not a finished run: it has no checkpoints/*/stage2")
    return {method: found[method] for method in methods or found}


def _intervene(method: str, model: Any, processor: Any, sample: list[ImageQuestion], out: Path) -> None:
    """Attention and gradients of one model."""
    with_boxes = [image for image in sample if image.boxes]
    attended = attention(model, processor, with_boxes or sample)
    show_attention(method, attended, out / "attention.md")
    draw_maps(attended["maps"], out / "attention.svg")
    write_json(out / "attention.json", attended)
    flowing = gradients(model, processor, sample[:DIFFERENTIATED])
    show_gradients(method, flowing, out / "gradients.md")
    write_json(out / "gradients.json", flowing)


def asymmetry(profiles: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """`{model: {quantity: {"mean", "ci95", "change", "change_ci95"}}}`, intervals of 95 % over images.

    `change` is the paired difference from the first model; a model measured on other images does not have it.
    """
    reference = next(iter(profiles.values()))
    differences: dict[str, dict[str, Any]] = {}
    for model, profile in profiles.items():
        paired = profile is not reference and profile["image_ids"] == reference["image_ids"]
        differences[model] = {}
        for name, column in profile["by_image"].items():
            values = _tensor(column)
            differences[model][name] = {"mean": values.mean().item(), "ci95": mean_interval(values)}
            if paired:
                change = values - _tensor(reference["by_image"][name])
                differences[model][name] |= {"change": change.mean().item(), "change_ci95": mean_interval(change)}
    return differences


def _tensor(column: list[float]) -> Tensor:
    return torch.tensor(column, dtype=torch.float64)


def show_asymmetry(models: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Visual minus text of every model, and the paired difference from the first model."""
    rows = []
    for model, quantities in models.items():
        for name, cell in quantities.items():
            change = _signed_cell(cell["change"], cell["change_ci95"]) if "change" in cell else "-"
            rows.append([model, name, _signed_cell(cell["mean"], cell["ci95"]), change])
    heads = ["model", "quantity", "visual - text, 95 %", f"minus {next(iter(models))}, paired, 95 %"]
    show_table("Asymmetry of visual and text tokens, means over images", heads, rows, out)


def _signed_cell(mean: float, interval: list[float]) -> str:
    return f"{mean:+.4f} [{interval[0]:+.4f}, {interval[1]:+.4f}]"


class _StaticTables:
    """Tables 1 and 5-8: encoders, embeddings, norm parameters."""

    def __init__(self) -> None:
        self.encoders: dict[str, Any] = {}
        self.embeddings: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}

    def add(self, method: str, model: Any, processor: Any, sample: list[ImageQuestion]) -> None:
        self.encoders[method] = encoder_norms(model, processor, sample[:ENCODED])
        self.embeddings[method] = embedding_tables(model, tokenizer_of(processor))
        if (norm := alignment_norm(model)) is not None:
            self.parameters[method] = norm_statistics(norm)

    def write(self, out: Path) -> None:
        show_encoders(self.encoders, out / "encoders.md")
        show_embeddings(self.embeddings, out)
        if self.parameters:
            show_parameters(self.parameters, out / "parameters.md")
        found = {"encoders": self.encoders, "embeddings": self.embeddings, "parameters": self.parameters}
        write_json(out / "static.json", found)


if __name__ == "__main__":
    run_main(main)
