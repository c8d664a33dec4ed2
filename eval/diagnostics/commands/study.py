"""`study RUN`: every table and figure of the diagnostics for all arms of a finished run, into RUN/diagnostics."""

import argparse
from pathlib import Path
from typing import Any

import torch

from eval.data.image_sample import Picture, in_benchmarks
from eval.diagnostics.commands.attention import draw_maps, show_attention
from eval.diagnostics.commands.dynamics import write_dynamics
from eval.diagnostics.commands.embeddings import show_embeddings
from eval.diagnostics.commands.encoders import show_encoders
from eval.diagnostics.commands.gradients import show_gradients
from eval.diagnostics.commands.parameters import norm_parameters, show_parameters
from eval.diagnostics.commands.profile import show_norms
from eval.diagnostics.commands.rescale import FACTORS, draw_rescale, show_rescale
from eval.diagnostics.commands.theory import show_checks, show_prediction
from eval.diagnostics.hooks.loading import load, load_encoder, load_language
from eval.diagnostics.measure.attention import attention
from eval.diagnostics.measure.embeddings import embedding_norms, embedding_statistics, largest_rows
from eval.diagnostics.measure.encoders import encoder_norms
from eval.diagnostics.measure.gradients import gradients
from eval.diagnostics.measure.profile import profile
from eval.diagnostics.measure.profile_file import read_training
from eval.diagnostics.measure.rescale import rescale
from eval.diagnostics.output.figures import draw_training
from eval.diagnostics.output.tables import show
from eval.diagnostics.statistics.bootstrap import mean_interval
from eval.diagnostics.theory.prediction import predicted_rotation
from eval.diagnostics.theory.simulation import GROUPS
from eval.run.files import write_json
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm


RESCALED, DIFFERENTIATED = 60, 16  # pictures of the costlier measurements: 8 passes, and 3 with their gradients


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as results/tinyworld")
    parser.add_argument("--methods", nargs="+", help="arms to look at, the reference first (default: all)")
    parser.add_argument("--limit", type=int, default=200, help="pictures of the profile (default 200)")
    parser.add_argument("--out", type=Path, help="folder for the results (default RUN/diagnostics)")


def run(arguments: argparse.Namespace) -> None:
    folder, out = arguments.run, arguments.out or arguments.run / "diagnostics"
    arms = _arms(folder, arguments.methods)
    sample = in_benchmarks(folder / "data" / "mirrors", arguments.limit)
    profiles: dict[str, dict[str, Any]] = {}
    for arm, checkpoint in arms.items():
        profiles[arm] = profile(str(checkpoint), sample, out / arm / "profile.json")
        show_norms(profiles[arm], out / arm / "norms.md")
        _look_closer(arm, checkpoint, sample, out / arm)
    write_dynamics(profiles, out)
    write_asymmetry(profiles, out)
    _static_tables(arms, sample, out)
    probes = {arm: checkpoint.parent / "stage1" / "probe.jsonl" for arm, checkpoint in arms.items()}
    runs = {arm: read_training(path) for arm, path in probes.items() if path.is_file()}
    if runs:
        draw_training(runs, out / "figure5.svg")
    show_checks([check for group in GROUPS.values() for check in group()], out / "theory.md")
    for measured in profiles.values():
        show_prediction(measured)
    write_json(out / "predictions.json", {arm: predicted_rotation(each) for arm, each in profiles.items()})
    print(f"all tables and figures are in {out}")  # noqa: T201


def _arms(folder: Path, methods: list[str] | None) -> dict[str, Path]:
    """Last stage of each arm; `baseline` first."""
    found = {path.parent.name: path for path in sorted(folder.glob("checkpoints/*/stage2")) if path.is_dir()}
    for method in methods or ():
        if method not in found:
            raise UserError(
                f"--methods {method}: {folder} has no checkpoint of it (it has: {', '.join(found) or '-'})"
            )
    if not found:
        raise UserError(f"{folder} holds no checkpoints/*/stage2: it is no finished run")
    names = methods or sorted(found, key=lambda name: name != "baseline")
    return {name: found[name] for name in names}


def _look_closer(arm: str, checkpoint: Path, sample: list[Picture], out: Path) -> None:
    """Attention, rescaling and gradients of one arm."""
    model, processor = load(str(checkpoint))
    boxed = [picture for picture in sample if picture.boxes]
    looked = attention(model, processor, boxed or sample)
    show_attention(arm, looked, out / "attention.md")
    draw_maps(looked["maps"], out / "attention.svg")
    write_json(out / "attention.json", looked)
    answered = [picture for picture in sample if picture.answer is not None]
    scaled = rescale(model, processor, (answered or sample)[:RESCALED], list(FACTORS))
    show_rescale(arm, scaled, out / "rescale.md")
    draw_rescale(scaled, out / "rescale.svg")
    write_json(out / "rescale.json", scaled)
    flowing = gradients(model, processor, sample[:DIFFERENTIATED])
    show_gradients(arm, flowing, out / "gradients.md")
    write_json(out / "gradients.json", flowing)


def _static_tables(arms: dict[str, Path], sample: list[Picture], out: Path) -> None:
    """Tables 1 and 5-8: encoders, embeddings, norm parameters."""
    encoders, embeddings, parameters = {}, {}, {}
    for arm, checkpoint in arms.items():
        encoders[arm] = encoder_norms(*load_encoder(str(checkpoint)), sample[:RESCALED])
        model, tokenizer = load_language(str(checkpoint))
        norms = embedding_norms(model.get_input_embeddings())
        embeddings[arm] = {
            "module output": embedding_statistics(norms),
            "stored rows": embedding_statistics(embedding_norms(model.get_input_embeddings(), raw=True)),
            "largest": largest_rows(norms, tokenizer),
        }
        for module in model.modules():
            if isinstance(module, GlobalWeightCompensatedLayerNorm):
                parameters[arm] = norm_parameters(module)
    show_encoders(encoders, out / "encoders.md")
    show_embeddings(embeddings, out)
    if parameters:
        show_parameters(parameters, out / "parameters.md")
    write_json(out / "static.json", {"encoders": encoders, "embeddings": embeddings, "parameters": parameters})


def write_asymmetry(profiles: dict[str, dict[str, Any]], out: Path) -> None:
    """Visual minus text in every arm, and its paired difference from the first arm; 95 % over images."""
    first, reference = next(iter(profiles.items()))
    rows: list[list[str]] = []
    found: dict[str, Any] = {}
    for arm, each in profiles.items():
        paired = each["image_ids"] == reference["image_ids"]
        found[arm] = {}
        for name, column in each["by_image"].items():
            values = torch.tensor(column, dtype=torch.float64)
            cells = [arm, name, _cell(values)]
            found[arm][name] = {"mean": values.mean().item(), "ci95": mean_interval(values)}
            if paired and each is not reference:
                change = values - torch.tensor(reference["by_image"][name], dtype=torch.float64)
                cells.append(_cell(change))
                found[arm][name] |= {"change": change.mean().item(), "change_ci95": mean_interval(change)}
            rows.append([*cells, "-"][:4])
    heads = ["arm", "quantity", "visual - text, 95 %", f"minus {first}, paired, 95 %"]
    show("Asymmetry of visual and text tokens, means over images", heads, rows, out / "asymmetry.md")
    write_json(out / "asymmetry.json", found)


def _cell(values: torch.Tensor) -> str:
    low, high = mean_interval(values)
    return f"{values.mean().item():+.4f} [{low:+.4f}, {high:+.4f}]"
