"""The cost of the norm: time of its forward and backward pass over that of a training step without it.

    python -m benchmarks.norm_overhead --out benchmarks/results/norm_overhead.json
    python -m benchmarks.norm_overhead --methods all --compiled --dtype bfloat16 --layers 28     # on a GPU

The step is one of `baseline` with the paper's larger backbone: a projector 1152 -> 3584 and frozen Qwen2.5-7B layers,
on one image of 729 tokens. By default there are two layers of 28, so the result is an upper bound.
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
from modeling_aligned_llava import AlignedLlavaConfig, method_fields, method_names
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaMultiModalProjector, build_norm


VISION_WIDTH = 1152
TEXT_NORM, VISUAL_NORM = 0.80, 40.0  # Qwen2.5-7B-Instruct, Table 1; a projector's, before training


def configuration(method: str, width: int, layers: int) -> AlignedLlavaConfig:
    text = Qwen2Config(
        hidden_size=width,
        intermediate_size=width * 37 // 7,
        num_hidden_layers=layers,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=64,
    )
    vision = SiglipVisionConfig(hidden_size=VISION_WIDTH)
    fields = {**method_fields(method), "text_norm": TEXT_NORM, "visual_norm": VISUAL_NORM}
    return AlignedLlavaConfig(vision_config=vision, text_config=text, **fields)


def step_of_baseline(tokens: int, width: int, layers: int, dtype: torch.dtype, device: str) -> Callable[[], None]:
    config = configuration("baseline", width, layers)
    with torch.device(device):
        projector = AlignedLlavaMultiModalProjector(config).train()
        decoder = Qwen2Model(config.text_config)
        decoder.to(dtype).train().requires_grad_(False)  # type: ignore[arg-type]  # transformers' decorator hides `self`
        features = torch.randn(1, tokens, VISION_WIDTH)

    def step() -> None:
        projector.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            decoded = decoder(inputs_embeds=projector(features), use_cache=False).last_hidden_state
        decoded.float().square().mean().backward()

    return step


def pass_of_norm(
    method: str, tokens: int, width: int, dtype: torch.dtype, device: str, compiled: bool
) -> Callable[[], None]:
    norm = build_norm(configuration(method, width, 1), width)
    assert norm is not None
    norm.to(device).train()
    torch.compiler.reset()  # it gives up after eight variants of one function
    call = torch.compile(norm) if compiled else norm
    x = (VISUAL_NORM / width**0.5 * torch.randn(tokens, width, device=device)).to(dtype).requires_grad_()
    upstream: Tensor = torch.randn(tokens, width, device=device).to(dtype)

    def run() -> None:
        x.grad = None
        norm.zero_grad()
        call(x).backward(upstream)

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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.norm_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=5, help="timed steps without the norm")
    parser.add_argument("--passes", type=int, default=50, help="timed passes of the norm")
    parser.add_argument("--methods", nargs="+", default=["norm-gwc"], help="or `all` that have a norm")
    parser.add_argument("--compiled", action="store_true", help="the norm with torch.compile too")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--layers", type=int, default=2, help="layers of the decoder; the paper's has 28")
    parser.add_argument("--tokens", type=int, default=729)
    parser.add_argument("--width", type=int, default=3584, help="of the decoder, a multiple of 56")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, args.dtype)
    methods = args.methods
    if methods == ["all"]:
        methods = [name for name in method_names() if build_norm(configuration(name, args.width, 1), args.width)]
    norms = {}
    for method in methods:
        for compiled in (False, True) if args.compiled else (False,):
            run = pass_of_norm(method, args.tokens, args.width, dtype, device, compiled)
            norms[f"{method}, compiled" if compiled else method] = seconds(run, args.passes, 5, device)
    step = seconds(step_of_baseline(args.tokens, args.width, args.layers, dtype, device), args.steps, 1, device)
    shape = {"tokens": args.tokens, "width": args.width, "decoder_layers": args.layers, "dtype": args.dtype}
    result = {
        "benchmark": "norm_overhead",
        "ratios": {name: 1 + norm / step for name, norm in norms.items()},
        "seconds": {"norm": norms, "baseline_step": step},
        "shape": shape,
        "repeats": {"norm": args.passes, "baseline_step": args.steps},
        **environment(),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
