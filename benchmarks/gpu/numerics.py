"""Numbers that must not depend on how they are computed: the compensated gradient, packed rows, answers in batches.

    python -m benchmarks.gpu.numerics --out FILE

Errors are norms of the difference over norms of the reference: the compensated gradient against float64; loss and
gradient of packed rows against padded ones, for each attention that the machine has. Of the answers of a random
network, whose margins are small, those are counted that differ from one row at a time, padded and with shared
prefixes.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils import is_flash_attn_2_available

from benchmarks.gpu.evaluation import FORMS, documents, shared_answers
from benchmarks.random_checkpoints import SHAPES as CHECKPOINTS
from benchmarks.random_checkpoints import write_checkpoint
from benchmarks.record import environment, write
from benchmarks.training_worlds import SHAPES, make_model
from modeling_aligned_llava import AlignedLlavaForConditionalGeneration, GlobalWeightCompensatedLayerNorm
from modeling_aligned_llava.inference.generator import load_generator
from train.data.collator import ImageTextCollator
from train.data.tokenization import IGNORE_INDEX


BATCHES = (1, 4, 16)
TEXTS = (5, 90, 17, 40)  # tokens of the rows that are packed


def error(found: Tensor, reference: Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    return ((found.double() - reference).norm() / reference.norm()).item()


def compensated_gradient(width: int, tokens: int, device: str) -> dict[str, float]:
    """Error of the norm's input gradient against the definition in float64 (Eq. 12)."""
    torch.manual_seed(0)
    x, upstream = 30 * torch.randn(tokens, width, device=device), torch.randn(tokens, width, device=device)
    found = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        for compiled in (False, True) if device == "cuda" else (False,):
            norm = GlobalWeightCompensatedLayerNorm(width, gain_init=0.01336).to(device).train()
            given, coming = x.to(dtype).requires_grad_(), upstream.to(dtype)
            (gradient,) = torch.autograd.grad((torch.compile(norm) if compiled else norm)(given), given, coming)
            wide = given.detach().double().requires_grad_()
            assert norm.weight is not None and norm.bias is not None
            plain = F.layer_norm(wide, (width,), norm.weight.double(), norm.bias.double(), norm.eps)
            (reference,) = torch.autograd.grad(plain, wide, coming.double())
            reference = reference / norm.weight.detach().double().abs().mean()
            found[f"{name}, compiled" if compiled else name] = error(gradient, reference)
    return found


def loss_and_gradient(model: AlignedLlavaForConditionalGeneration, batch: dict[str, Tensor]) -> tuple[float, Tensor]:
    """Loss, and the gradients of the decoder's first layer: all rows' attention has shaped them."""
    model.zero_grad()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    gradients = [p.grad.flatten() for p in model.model.language_model.layers[0].parameters() if p.grad is not None]
    return loss.item(), torch.cat(gradients)


def packing(shape: str, device: str) -> dict[str, Any]:
    """Relative difference of packed rows from padded ones, by attention and precision."""
    model = make_model(SHAPES[shape], "norm-gwc", drop_unused=True, device=device).train()
    config, generator = model.config, torch.Generator().manual_seed(0)
    rows = []
    for text in TEXTS:
        words = torch.randint(8, config.text_config.vocab_size, (text,), generator=generator).tolist()
        ids = [config.image_token_id] * config.image_seq_length + words
        rows.append({"input_ids": ids, "labels": [IGNORE_INDEX] * config.image_seq_length + words, "images": []})
    side = config.vision_config.image_size
    pixels = torch.randn(len(rows), 3, side, side, generator=generator).to(device)

    def batch(packed: bool) -> dict[str, Tensor]:
        collate = ImageTextCollator(None, 0, lambda given: (given, []), packed)  # type: ignore[arg-type]
        return {name: value.to(device) for name, value in collate(rows).items()} | {"pixel_values": pixels}

    ways = [("sdpa", torch.float32), ("eager", torch.float32)]
    if device == "cuda":
        ways += [("sdpa", torch.bfloat16), ("flex_attention", torch.float32), ("flex_attention", torch.bfloat16)]
        ways += [("flash_attention_2", torch.bfloat16)] if is_flash_attn_2_available() else []
    reference: dict[torch.dtype, tuple[float, Tensor]] = {}
    found = {}
    for attention, dtype in ways:
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            if dtype not in reference:
                reference[dtype] = loss_and_gradient(model, batch(packed=False))  # sdpa comes first
            model.model.language_model.set_attn_implementation(attention)
            loss, gradient = loss_and_gradient(model, batch(packed=True))
            model.model.language_model.set_attn_implementation("sdpa")
        (expected, expected_gradient) = reference[dtype]
        name = f"{attention}, {str(dtype).removeprefix('torch.')}"
        found[name] = {
            "loss": abs(loss / expected - 1),
            "gradient": error(gradient, expected_gradient.double()),
        }
    return found


def flips(shape: str, device: str, fraction: float) -> dict[str, Any]:
    """Answers that differ from those of one row at a time, by precision and batch size."""
    asked, limit = documents(FORMS["pope"], fraction), FORMS["pope"].answer
    found: dict[str, Any] = {"answers": len(asked)}
    for dtype in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(Path(folder), CHECKPOINTS[shape], getattr(torch, dtype))
            generator = load_generator(folder, dtype, device)
        prompts = [generator.render(document.text, 1) for document in asked]
        alone: list[str] = []
        for size in BATCHES:
            answers = []
            for first in range(0, len(asked), size):
                images = [document.images for document in asked[first : first + size]]
                answers += generator.answer(prompts[first : first + size], images, limit)
            alone = alone or answers
            found[f"{dtype}, batch {size}"] = sum(a != b for a, b in zip(answers, alone, strict=True))
        shared = shared_answers(generator, asked, limit, max(BATCHES))
        found[f"{dtype}, shared prefixes"] = sum(a != b for a, b in zip(shared, alone, strict=True))
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.numerics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=["toy", "40m"], default="40m")
    parser.add_argument("--width", type=int, default=3584, help="of the norm")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the images and of their questions")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = {
        "benchmark": "gpu_numerics",
        "compensated_gradient_error": compensated_gradient(args.width, 729, device),
        "packed_against_padded": packing(args.shape, device),
        "answers_that_differ_from_batch_1": flips(args.shape, device, args.fraction),
        "shape": args.shape,
        **environment(),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
