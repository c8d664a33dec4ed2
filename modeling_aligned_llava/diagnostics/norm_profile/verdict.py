"""The verdict of a profile in plain lines: are visual tokens inert, and what did the study find in such decoders?

Inert: in more than half of the decoder's layers, visual tokens rotate less than half as far as text (mean angle).
"""

from itertools import groupby
from math import degrees
from pathlib import Path
from typing import Any

import yaml

from modeling_aligned_llava.diagnostics.norm_profile.connector_norm import connector_line


INERT = 0.5  # rotation of visual tokens over that of text, below which a layer counts
STUDY = Path(__file__).with_name("study_by_lift.yaml")


def verdict(profile: dict[str, Any]) -> dict[str, Any] | None:
    """What a profile says, as numbers and as `lines` of text; None if it has no visual or no text tokens.

    Returns:
        `visual_norm`, `embedding_norm`, `met_norm` (text entering layer 1, where visual tokens meet it), `ratio` and
        `met_ratio` of the first to the other two; `lift` (text entering layer 1 over text entering layer 0);
        `rotation` (mean angle a layer in degrees, by modality); `inert_layers`; `inert` ("yes", "no", or "in part":
        in some layers, at most half); `summary` and `lines`.
    """
    layers = profile["layers"]
    if not {"visual", "text"} <= layers.keys():
        return None
    text = layers["text"]["norm"]["mean"]
    depth = len(layers["text"]["angle"]["mean"])
    met = text[min(1, depth - 1)]
    angles = {name: layers[name]["angle"]["mean"] for name in ("visual", "text")}
    pairs = list(zip(angles["visual"], angles["text"], strict=True))
    inert_layers = [i for i, (v, t) in enumerate(pairs) if v is not None and t is not None and v < INERT * t]
    known = [(v, t) for v, t in pairs if v is not None and t is not None]
    rotation = {
        name: degrees(sum(pair[i] for pair in known) / len(known)) if known else None
        for i, name in enumerate(("visual", "text"))
    }
    visual = profile["norms"]["visual tokens at layer 0"]["mean"]
    numbers: dict[str, Any] = {
        "visual_norm": visual,
        "embedding_norm": profile["norms"]["text embeddings"]["mean"],
        "met_norm": met,
        "ratio": profile["ratio"],
        "met_ratio": visual / met,
        "lift": met / text[0],
        "rotation": rotation,
        "inert_layers": inert_layers,
        "inert": "yes" if 2 * len(inert_layers) > depth else "in part" if inert_layers else "no",
    }
    lines = _lines(numbers, depth)
    if "connector_norm" in profile:
        lines.insert(1, connector_line(profile["connector_norm"]))
    return {**numbers, "summary": _summary(numbers), "lines": lines}


def show_verdict(profile: dict[str, Any]) -> None:
    """Whether the visual tokens are inert, and what that means, in a few lines."""
    judged = verdict(profile)
    without = (
        "No verdict: no prompt had both visual tokens and text. A chat template that drops the question does that."
    )
    lines = judged["lines"] if judged else [without]
    print("\n".join([f"{profile['model']}, {profile['images']} images:", *(f"  {line}" for line in lines)]))  # noqa: T201


def _summary(numbers: dict[str, Any]) -> str:
    """One line for tables of several models."""
    words = {"yes": "inert", "no": "not inert", "in part": f"inert in {_ranges(numbers['inert_layers'])} only"}
    return (
        f"{words[numbers['inert']]}: {_times(numbers['ratio'])} the norm of text embeddings, "
        f"{_times(numbers['met_ratio'])} that of text in the decoder; rotation per layer {_rotation(numbers)}"
    )


def _lines(numbers: dict[str, Any], depth: int) -> list[str]:
    where = _ranges(numbers["inert_layers"])
    less = f"less than half of text's in {where}" if where else "at least half of text's in every layer"
    conclusion = {
        "yes": f"inert (in {len(numbers['inert_layers'])} of {depth} layers, more than half)",
        "in part": f"inert in {where} only ({len(numbers['inert_layers'])} of {depth}, not more than half)",
        "no": "not inert",
    }[numbers["inert"]]
    return [
        f"Visual tokens have norm {numbers['visual_norm']:.3g}: {_times(numbers['ratio'])} text embeddings "
        f"({numbers['embedding_norm']:.3g}), {_times(numbers['met_ratio'])} the text they meet in the decoder "
        f"({numbers['met_norm']:.3g} at layer 1).",
        f"Lift: layer 0 multiplies the norm of text by {numbers['lift']:.2g}.",
        f"Rotation per layer: {_rotation(numbers)}; {less}.",
        f"Verdict: the visual tokens are {conclusion}.",
        f"Study: {_study(numbers['lift'])} (docs/findings.md).",
        "That was a small decoder: what the norm would do for this model, only training it with and without the norm "
        "can show.",
    ]


def _rotation(numbers: dict[str, Any]) -> str:
    visual, text = numbers["rotation"]["visual"], numbers["rotation"]["text"]
    return "unknown" if visual is None else f"visual {visual:.2g}°, text {text:.2g}°"


def _study(lift: float) -> str:
    """What was found in decoders of about this lift."""
    regimes = yaml.safe_load(STUDY.read_text(encoding="utf-8"))["regimes"]
    return next(regime["found"] for regime in regimes if lift < regime["below"])


def _ranges(layers: list[int]) -> str:
    """`layers 0-3, 5`, or `layer 0`."""
    groups = groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])
    runs = [[layer for _, layer in group] for _, group in groups]
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {listed}" if layers else ""


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"
