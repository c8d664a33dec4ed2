"""The cost of profiling: time of a measured forward pass over that of a plain one, paired.

python -m benchmarks.diagnostics_overhead --out benchmarks/results/diagnostics_overhead.json

The model is a LLaVA with 40 million parameters (8 decoder layers of width 512), its input one image of 729 visual
tokens and 32 text tokens. The smaller the model, the larger the overhead: larger models have less.
"""

import argparse
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, SiglipVisionConfig

from benchmarks.record import environment, write
from modeling_aligned_llava.diagnostics.measure.layers import Measurement, measuring
from modeling_aligned_llava.inspection.model_parts import model_parts


IMAGE_TOKEN, TEXT_TOKENS, VOCABULARY, SEED = 8191, 32, 8192, 0


def build(width: int, layers: int, side: int, device: str, dtype: torch.dtype) -> tuple[Any, dict[str, torch.Tensor]]:
    """A random LLaVA with `side` x `side` visual tokens, and the inputs of one image."""
    torch.manual_seed(SEED)
    vision = SiglipVisionConfig(
        hidden_size=width * 3 // 4,
        intermediate_size=width * 3,
        num_hidden_layers=3,
        num_attention_heads=width // 64,
        image_size=14 * side,
        patch_size=14,
        vision_use_head=False,
    )
    text = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE_TOKEN,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = LlavaForConditionalGeneration(config).eval()
    model.to(device, dtype)  # type: ignore[arg-type]  # transformers' decorator hides `self`
    words = torch.randint(0, IMAGE_TOKEN, (1, TEXT_TOKENS))
    ids = torch.cat([words[:, :8], torch.full((1, side * side), IMAGE_TOKEN), words[:, 8:]], 1)
    pixels = torch.randn(1, 3, 14 * side, 14 * side)
    return model, {"input_ids": ids.to(device), "pixel_values": pixels.to(device, dtype)}


def seconds(model: Any, inputs: dict[str, torch.Tensor], measurement: Measurement | None) -> float:
    """Seconds of one forward pass, with statistics if there is a measurement; hooks are set outside the timing."""
    with nullcontext() if measurement is None else measuring(model, model_parts(model), into=measurement):
        start = time.perf_counter()
        model(**inputs, use_cache=False)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnostics_overhead", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--pairs", type=int, default=15, help="timed pairs of a plain and a measured pass")
    parser.add_argument("--width", type=int, default=512, help="width of the decoder, a multiple of 64")
    parser.add_argument("--layers", type=int, default=8, help="layers of the decoder")
    parser.add_argument("--side", type=int, default=27, help="visual tokens per row and per column")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, inputs = build(args.width, args.layers, args.side, device, getattr(torch, args.dtype))
    measurement = Measurement(args.layers)
    plain: list[float] = []
    measured: list[float] = []
    for pair in range(args.pairs + 1):
        runs = [(None, plain), (measurement, measured)]
        for each, times in runs if pair % 2 else runs[::-1]:
            times.append(seconds(model, inputs, each))
    ratios = [b / a for a, b in zip(plain[1:], measured[1:], strict=True)]  # the first pair warms up
    result = {
        "benchmark": "diagnostics_overhead",
        "ratios": {"profile": statistics.median(ratios)},
        "quartiles": statistics.quantiles(ratios, n=4) if len(ratios) > 1 else None,
        "seconds": {"forward": statistics.median(plain[1:]), "profile": statistics.median(measured[1:])},
        "shape": {
            "parameters": sum(p.numel() for p in model.parameters()),
            "visual_tokens": args.side**2,
            "text_tokens": TEXT_TOKENS,
            "width": args.width,
            "decoder_layers": args.layers,
            "dtype": args.dtype,
        },
        "pairs": args.pairs,
        **environment(),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
