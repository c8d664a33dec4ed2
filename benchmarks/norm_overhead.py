"""The cost of the norm: time of its forward and backward pass over that of a training step without it.

    python -m benchmarks.norm_overhead --out benchmarks/results/norm_overhead.json

The step is one of `baseline` with the paper's larger backbone: a projector 1152 -> 3584 and frozen Qwen2.5-7B layers,
on one image of 729 tokens. There are two layers of 28, so the result is an upper bound.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2Model, SiglipVisionConfig
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from benchmarks.record import environment, options, write
from modeling_aligned_llava import AlignedLlavaConfig, method_fields
from modeling_aligned_llava.modeling_aligned_llava import build_norm


METHOD, LAYERS, VISION_WIDTH = "norm-gwc", 2, 1152
TEXT_NORM, VISUAL_NORM = 0.80, 40.0  # Qwen2.5-7B-Instruct, Table 1; a projector's, before training
STEPS, PASSES = 5, 50  # timed, without the norm and of the norm


def configuration(method: str, width: int) -> AlignedLlavaConfig:
    text = Qwen2Config(
        hidden_size=width,
        intermediate_size=width * 37 // 7,
        num_hidden_layers=LAYERS,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=64,
    )
    fields = {**method_fields(method), "text_norm": TEXT_NORM}
    return AlignedLlavaConfig(vision_config=SiglipVisionConfig(hidden_size=VISION_WIDTH), text_config=text, **fields)


def step_of_baseline(tokens: int, width: int, device: str) -> Callable[[], None]:
    config = configuration("baseline", width)
    with torch.device(device):
        projector = LlavaMultiModalProjector(config).train()
        decoder = Qwen2Model(config.text_config).train().requires_grad_(False)
        features = torch.randn(1, tokens, VISION_WIDTH)

    def step() -> None:
        projector.zero_grad()
        decoded = decoder(inputs_embeds=projector(features), use_cache=False).last_hidden_state
        decoded.square().mean().backward()

    return step


def pass_of_norm(tokens: int, width: int, device: str) -> Callable[[], None]:
    norm = build_norm(configuration(METHOD, width), width)
    assert norm is not None
    norm.to(device).train()
    x = (VISUAL_NORM / width**0.5 * torch.randn(tokens, width, device=device)).requires_grad_()
    upstream: Tensor = torch.randn(tokens, width, device=device)

    def run() -> None:
        x.grad = None
        norm.zero_grad()
        norm(x).backward(upstream)

    return run


def seconds(run: Callable[[], None], repeats: int, device: str) -> float:
    """Median seconds of `run`, after an untimed one."""
    times = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main(argv: list[str] | None = None) -> None:
    parser = options("benchmarks.norm_overhead", __doc__)
    parser.add_argument("--tokens", type=int, default=729)
    parser.add_argument("--width", type=int, default=3584, help="of the decoder, a multiple of 56")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    norm = seconds(pass_of_norm(args.tokens, args.width, device), PASSES, device)
    step = seconds(step_of_baseline(args.tokens, args.width, device), STEPS, device)
    result = {
        "benchmark": "norm_overhead",
        "ratios": {METHOD: 1 + norm / step},
        "seconds": {"norm": {METHOD: norm}, "baseline_step": step},
        "shape": {"tokens": args.tokens, "width": args.width, "decoder_layers": LAYERS},
        **environment(),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
