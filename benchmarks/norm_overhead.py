"""The cost of the norm: time of its forward and backward pass over that of a training step without it.

python -m benchmarks.norm_overhead --out benchmarks/results/norm_overhead.json

The step is one of `baseline` with the paper's larger backbone, cut to two decoder layers: a projector 1152 -> 3584 and
two frozen Qwen2.5-7B layers, on one image of 729 tokens. The whole decoder has 28 layers, so this is an upper bound.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2Model, SiglipVisionConfig

from benchmarks.record import environment, write
from modeling_aligned_llava import AlignedLlavaConfig, method_fields
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaMultiModalProjector, build_norm


TOKENS, VISION_WIDTH, WIDTH, LAYERS = 729, 1152, 3584, 2
TEXT_NORM = 0.80  # Qwen2.5-7B-Instruct, Table 1


def configuration(method: str) -> AlignedLlavaConfig:
    text = Qwen2Config(
        hidden_size=WIDTH,
        intermediate_size=18944,
        num_hidden_layers=LAYERS,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=64,
    )
    vision = SiglipVisionConfig(hidden_size=VISION_WIDTH)
    fields = {**method_fields(method), "text_norm": TEXT_NORM}
    return AlignedLlavaConfig(vision_config=vision, text_config=text, **fields)


def step_of_baseline(device: str) -> Callable[[], None]:
    config = configuration("baseline")
    projector = AlignedLlavaMultiModalProjector(config).to(device).train()
    decoder = Qwen2Model(config.text_config).to(device).train().requires_grad_(False)
    features = torch.randn(1, TOKENS, VISION_WIDTH, device=device)

    def step() -> None:
        projector.zero_grad()
        decoder(inputs_embeds=projector(features), use_cache=False).last_hidden_state.square().mean().backward()

    return step


def pass_of_norm(method: str, device: str) -> Callable[[], None]:
    norm = build_norm(configuration(method), WIDTH)
    assert norm is not None
    norm.to(device).train()
    x = (40 / WIDTH**0.5 * torch.randn(TOKENS, WIDTH, device=device)).requires_grad_()
    upstream: Tensor = torch.randn(TOKENS, WIDTH, device=device)

    def run() -> None:
        x.grad = norm.weight.grad = norm.bias.grad = None
        norm(x).backward(upstream)

    return run


def seconds(run: Callable[[], None], repeats: int, warm_up: int, device: str) -> float:
    """Median seconds of `run`, after `warm_up` untimed runs."""
    times = []
    for _ in range(warm_up + repeats):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[warm_up:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.norm_overhead", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=5, help="timed steps without the norm")
    parser.add_argument("--passes", type=int, default=50, help="timed passes of the norm")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    norm = seconds(pass_of_norm("norm-gwc", device), args.passes, 5, device)
    step = seconds(step_of_baseline(device), args.steps, 1, device)
    result = {
        "benchmark": "norm_overhead",
        "ratios": {"norm-gwc": 1 + norm / step},
        "seconds": {"norm": norm, "baseline_step": step},
        "shape": {"tokens": TOKENS, "width": WIDTH, "decoder_layers": LAYERS, "dtype": "float32"},
        "repeats": {"norm": args.passes, "baseline_step": args.steps},
        **environment(),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
