"""The file of a profile: a measurement summarised as one JSON document, which all figures and comparisons read.

Means and deviations are over tokens, as in the paper; intervals come from a bootstrap over images.

Shapes: K quantities, L layers; L + 1 where the output of the last layer counts too (for "norm" alone).
"""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_aligned_llava.diagnostics.instruments.token_statistics import (
    draws,
    embedding_statistics,
    interval,
    resampled_means,
)
from modeling_aligned_llava.diagnostics.norm_profile.layer_measurement import Measurement
from modeling_aligned_llava.diagnostics.norm_profile.rotation import QUANTITIES, TERMS
from modeling_aligned_llava.diagnostics.norm_profile.verdict import verdict
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.loading.files import read_json


SCHEMA = 2  # 1 counted marks of chat formats as text
SETTLED = 0.25  # the largest relative change of text's mean norm in a layer after it has settled
POSITIVE = ("norm", "distance", "angle", "update")  # these have a median and quantiles


def summarise(
    measurement: Measurement,
    embedding: dict[str, Tensor],
    header: dict[str, Any],
    ids: list[str],
    unreadable: list[dict[str, str]],
) -> dict[str, Any]:
    """The JSON of a profile. Its lists are over layers; that of `norm` ends with the output of the last layer.

    Args:
        embedding: norms of all rows, `text embeddings` after the embedding module and those of the stored rows.
    """
    stages = {name: moments.summary() for name, moments in measurement.stages.items()}
    stages = {name: summary for name, summary in stages.items() if summary}
    _stage_intervals(measurement, stages)
    scale = measurement.text_scale()  # both sides of every ratio are taken where layer 0 reads them
    embedding = {**embedding, "text embeddings": embedding["text embeddings"] * (scale or 1.0)}
    norms = {**stages, **{name: embedding_statistics(values) for name, values in embedding.items()}}
    if scale is None:  # positions are added, or a norm applied: only tokens that occur have a norm there
        norms["text embeddings"] = norms["text tokens at layer 0"]
    visual, text = norms["visual tokens at layer 0"], norms["text embeddings"]
    layers = _layers(measurement)
    result = {
        "schema": SCHEMA,
        **header,
        "images": len(ids),
        "image_ids": ids,
        "unreadable": unreadable,
        "norms": norms,
        "text_scale": scale,
        "ratio": visual["mean"] / text["mean"],
        "median_ratio": visual["median"] / text["median"],
        "stream": _stream(layers),
        "layers": layers,
        **_comparison(measurement, layers),
        "visual_information": measurement.sample.summary(),
        "output_hidden_states_convention": _final_norm(measurement),
    }
    result = _without_nan(result)
    return {**result, "verdict": verdict(result)}


def _stream(layers: dict[str, Any]) -> dict[str, Any] | None:
    """Visual tokens against text inside the decoder; None where a modality has no tokens.

    `ratio`: mean norm of visual tokens over that of text, both at the input of each layer. `entry_ratio`: visual
    tokens at the input of layer 0 over text at the input of each layer. `settled`: the first layer from which on every
    layer changes text's mean norm by at most 25 %. The output of the last one does not count: only the final norm
    reads it.
    """
    if not {"visual", "text"} <= layers.keys():
        return None
    visual, text = (torch.tensor(layers[series]["norm"]["mean"][:-1]) for series in ("visual", "text"))
    return {
        "ratio": (visual / text).tolist(),
        "entry_ratio": (visual[0] / text).tolist(),
        "settled": settled_layer(text.tolist()),
    }


def settled_layer(norms: list[float]) -> int:
    """The first of the layers that these norms enter, from which on no step to the next exceeds `SETTLED`."""
    steps = [abs(after - before) <= SETTLED * before for before, after in pairwise(norms)]
    return len(steps) - steps[::-1].index(False) if False in steps else 0


def _without_nan(content: Any) -> Any:
    """Replace numbers that do not exist, such as the angle of a zero vector, by None: JSON has no NaN."""
    if isinstance(content, dict):
        return {name: _without_nan(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _stage_intervals(measurement: Measurement, stages: dict[str, Any]) -> None:
    """Add the interval of the mean to the summary of each stage."""
    for name, summary in stages.items():
        pairs = [image[name] for image in measurement.stage_images if image.get(name, (0, 0))[1]]
        sums, counts = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
        low, high = interval(resampled_means(sums, counts, draws(len(pairs))))
        summary["mean_ci95"] = [low.item(), high.item()]


def _layers(measurement: Measurement) -> dict[str, Any]:
    """`{series: {quantity: {mean, std, ...}}}`, each a list over layers; series without tokens are absent."""
    layers: dict[str, Any] = {}
    for series, moments in measurement.layers.items():
        if not moments.count.any():
            continue
        medians, low, high = (moments.quantile(share) for share in (0.5, 0.05, 0.95))  # [K, L + 1]
        layers[series] = {}
        for row, name in enumerate(QUANTITIES):
            length = measurement.depth + 1 if name == "norm" else measurement.depth
            known = moments.count[row, :length] > 0
            cells = {"mean": moments.mean, "std": moments.std}
            if name in POSITIVE:
                cells |= {"median": medians, "q05": low, "q95": high}
            columns = {key: values[row, :length].where(known, torch.nan).tolist() for key, values in cells.items()}
            layers[series][name] = {**columns, "count": moments.count[row, :length].tolist()}
    return layers


def _comparison(measurement: Measurement, layers: dict[str, Any]) -> dict[str, Any]:
    """Visual against text: attribution, gap of the cosines, differences by image and coherence, with intervals.

    Also adds intervals to the norms, cosines and angles in `layers`. Empty if no image has both modalities.
    """
    # 1) Means [resamples, K, L + 1] of each modality in every resample of the images
    both = [image for image in measurement.images if all(counts[0, 0] for _, counts in image.values())]
    if not both:
        return {}
    weights = draws(len(both))
    resampled = {
        series: resampled_means(
            torch.stack([image[series][0] for image in both]),
            torch.stack([image[series][1] for image in both]),
            weights,
        )
        for series in ("visual", "text")
    }
    # 2) Intervals of each modality
    for series, values in resampled.items():
        for name in ("norm", "cosine", "distance", "angle"):
            columns = layers[series][name]
            columns["ci95"] = _intervals(values[:, QUANTITIES.index(name), : len(columns["mean"])])

    # 3) Visual minus text: of the means over tokens, [L], and of each resample, [resamples, L]
    def gap(quantity: str, sign: int = 1) -> dict[str, Any]:
        row = QUANTITIES.index(quantity)
        visual, text = (
            torch.tensor(layers[series][quantity]["mean"], dtype=torch.float64) for series in ("visual", "text")
        )
        between = resampled["visual"][:, row, :-1] - resampled["text"][:, row, :-1]
        return {"value": (sign * (visual - text)).tolist(), "ci95": _intervals(sign * between)}

    # 4) Coherence, [images, L]
    coherence = torch.stack(measurement.coherence)
    coherence = coherence[coherence.isfinite().all(-1)]
    return {
        "attribution": {"total": gap("log_tangent"), **{name: gap(*term) for name, term in TERMS.items()}},
        "cosine_gap": gap("cosine"),
        "by_image": _by_image(both),
        "coherence": {
            "value": coherence.mean(0).tolist(),
            "ci95": _intervals(draws(len(coherence)) @ coherence / len(coherence)),
        },
    }


def _by_image(images: list[dict[str, tuple[Tensor, Tensor]]]) -> dict[str, list[float]]:
    """Visual minus text of each image, for paired tests of two models: in layer 0, and as a mean over layers."""
    differences: dict[str, list[float]] = {}
    for name in ("log_norm", "cosine", "log_tangent"):
        row = QUANTITIES.index(name)
        means = {
            series: torch.stack([i[series][0][row, :-1] / i[series][1][row, :-1] for i in images])
            for series in ("visual", "text")
        }
        gap = means["visual"] - means["text"]  # [images, L]
        differences[f"{name}, layer 0"] = gap[:, 0].tolist()
        differences[f"{name}, mean over layers"] = gap.mean(1).tolist()
    return differences


def _intervals(values: Tensor) -> list[list[float]]:
    """95 % intervals of [resamples, L]: L pairs."""
    low, high = interval(values)
    return torch.stack([low, high], 1).tolist()


def _final_norm(measurement: Measurement) -> dict[str, Any]:
    """Norm and cosine of the last layer as `output_hidden_states` has them, after the final norm: an artefact."""
    return {
        series: {"norm": moments.mean[0, 0].item(), "cosine": moments.mean[1, 0].item()}
        for series, moments in measurement.final_norm.items()
        if moments.count.any()
    }


def read_profile(path: Path) -> dict[str, Any]:
    """The profile in a file.

    Raises:
        UserError: there is no such file, it is not a profile of this schema version, or it has states that are not
            finite.
    """
    with errors_named(f"{path} is not JSON", ValueError):
        content = read_json(path)
    if content is None:
        raise UserError(f"there is no profile {path}; `aligned-llava profile ... --json` writes one")
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{path} is not a profile of schema version {SCHEMA}; measure it again")
    layers, stages = content["layers"], content["norms"].values()
    norms = [norm for series in ("visual", "text") if series in layers for norm in layers[series]["norm"]["mean"]]
    if not are_finite([*norms, *(stage.get("mean") for stage in stages)]) or any(
        stage.get("skipped") for stage in stages
    ):
        raise UserError(f"{path}: the states of {content['model']} were not finite; measure it again")
    return content


def are_finite(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def attribution_of(profile: dict[str, Any]) -> dict[str, Any]:
    """The attribution of a profile; it has a value in every layer.

    Raises:
        UserError: no image had both visual and text tokens, or tokens are all zero and have no angle.
    """
    terms = profile.get("attribution")
    if terms is None or None in terms["total"]["value"]:
        raise UserError(f"the profile of {profile['model']} has no angles to compare: tokens are missing or zero")
    return terms
