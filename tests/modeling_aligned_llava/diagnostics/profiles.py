"""A small profile made from random states, for what reads profiles."""

import torch

from modeling_aligned_llava.diagnostics.norm_profile.layer_measurement import measuring
from modeling_aligned_llava.diagnostics.norm_profile.profile_file import summarise
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.norm_alignment import embedding_norms
from tests.modeling_aligned_llava.tiny_families import tiny


def small_profile(scale: float = 1.0) -> dict:
    """Of the tiny LLaVA on three noise images; `scale` multiplies its projector's output."""
    model, inputs = tiny("llava")
    parts = model_parts(model)
    with torch.no_grad():
        for parameter in parts.connector.linear_2.parameters():
            parameter.mul_(scale)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), measuring(model, parts) as measurement:
        for _ in range(3):
            model(**{**inputs, "pixel_values": torch.randn(1, 3, 28, 28, generator=generator)})
    embedding = {"text embeddings": embedding_norms(parts.embedding)}
    return summarise(measurement, embedding, {"model": "tiny"}, ["a", "b", "c"], [])
