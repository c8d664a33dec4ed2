"""Norms at the interface (paper Tables 1-2): connector input and output, what decoder layer 0 sees, text embeddings.

Everything is read by hooks on a normal forward pass, one picture at a time. All that is assumed of the model is that
it is a LLaVA: a `multi_modal_projector`, and visual tokens that stand where the image token stood.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image, UnidentifiedImageError
from rich.progress import track
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, AutoProcessor

import modeling_aligned_llava  # noqa: F401  registers AlignedLlavaConfig with the Auto classes
from modeling_aligned_llava.errors import UserError


SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
QUESTION = "Describe the image."


@dataclass(frozen=True)
class Norms:
    """Statistics of L2 norms over `count` tokens."""

    mean: float
    std: float
    median: float
    count: int

    @classmethod
    def of(cls, norms_N: Tensor) -> "Norms":
        norms_N = norms_N.double()
        std = norms_N.std(correction=0).item()
        return cls(norms_N.mean().item(), std, norms_N.median().item(), norms_N.numel())


@dataclass(frozen=True)
class Profile:
    """One model's norms on `images` pictures; `ratio` is mean visual norm at layer 0 over mean text-embedding norm."""

    model: str
    images: int
    norms: dict[str, Norms]

    @property
    def ratio(self) -> float:
        return self.norms["visual tokens at layer 0"].mean / self.norms["text embeddings"].mean

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def _pictures(path: Path, limit: int) -> list[Path]:
    if not path.exists():
        raise UserError(f"--images: there is no file or folder {path}")
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise UserError(f"--images: no picture in {path} (looked for {', '.join(sorted(SUFFIXES))})")
    return found[:limit]


def _opened(paths: list[Path]) -> Iterator[Image.Image]:
    for path in track(paths, description="pictures"):
        try:
            with Image.open(path) as picture:
                yield picture.convert("RGB")
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise UserError(f"--images: cannot read {path}: {error}") from error


def _norms(states: Tensor) -> Tensor:
    """L2 norms of [..., D] in float32, flattened."""
    return states.detach().float().norm(dim=-1).flatten().cpu()


def text_norms(embedding: nn.Embedding) -> Tensor:
    """Norms of the non-zero rows of what the embedding module outputs (Eq. 11), [V]."""
    ids = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
    norms = torch.cat([_norms(embedding(chunk)) for chunk in ids.split(8192)])
    return norms[norms > 0]


def load(path: str) -> tuple[Any, Any]:
    """Model and processor of a checkpoint, in eval mode; raises UserError with the reason where that fails."""
    try:
        return AutoModelForImageTextToText.from_pretrained(path).eval(), AutoProcessor.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load {path}: {' '.join(str(error).split())}") from error


@torch.inference_mode()
def measure(model: Any, processor: Any, pictures: Iterator[Image.Image]) -> dict[str, Norms]:
    """The four rows of a profile, by name, for an open model and its processor."""
    seen: dict[str, list[Tensor]] = {"connector input": [], "connector output": [], "visual tokens at layer 0": []}
    mask_S: Tensor | None = None

    def connector(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen["connector input"].append(_norms(inputs[0]))
        seen["connector output"].append(_norms(output))

    def first_layer(module: nn.Module, inputs: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        states = inputs[0] if inputs else kwargs["hidden_states"]
        assert mask_S is not None
        seen["visual tokens at layer 0"].append(_norms(states[0][mask_S]))

    hooks = [
        model.model.multi_modal_projector.register_forward_hook(connector),
        model.get_decoder().layers[0].register_forward_pre_hook(first_layer, with_kwargs=True),
    ]
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    prompt = processor.apply_chat_template(message, add_generation_prompt=True)
    try:
        for picture in pictures:
            inputs = processor(text=prompt, images=picture, return_tensors="pt").to(model.device)
            mask_S = inputs["input_ids"][0] == model.config.image_token_id
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    norms = {where: Norms.of(torch.cat(parts)) for where, parts in seen.items()}
    return norms | {"text embeddings": Norms.of(text_norms(cast(nn.Embedding, model.get_input_embeddings())))}


def profile(model_path: str, images: Path, limit: int) -> Profile:
    """Loads MODEL and measures it on the first `limit` pictures of `images`, in the order of their names.

    Raises:
        UserError: the model or a picture cannot be read.
    """
    paths = _pictures(images, limit)
    model, processor = load(model_path)
    return Profile(model_path, len(paths), measure(model, processor, _opened(paths)))
