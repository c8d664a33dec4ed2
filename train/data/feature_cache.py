"""Features of the frozen vision tower, cached on disk for stage 1: computed once, shared by all methods and epochs."""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BaseImageProcessor, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from modeling_aligned_llava.loading.build_once import replacing


class FeatureCache:
    """One file per image, in a folder named after tower, layer, image processor and precision.

    When the limit is reached, nothing is evicted and further features are not stored: an epoch visits every image once
    in random order, so replacing old features would lose as much as it gains.

    Args:
        folder: root of the cache.
        limit: maximum size in bytes, including files of earlier runs.
        processes: number of processes that fill it; each gets an equal share of the remaining space.
        tower: the frozen vision tower; its weights are part of the key.
        layer: index of the hidden state that the projector reads.
        image_processor: its settings are part of the key.
        precision: name of the autocast dtype, or of the weights'.
    """

    def __init__(
        self,
        folder: str | Path,
        limit: float,
        processes: int,
        tower: PreTrainedModel,
        layer: int,
        image_processor: BaseImageProcessor,
        precision: str,
    ):
        digest = hashlib.sha256(json.dumps([layer, precision, tower.config.to_dict()], default=str).encode())
        digest.update(image_processor.to_json_string().encode())
        for name, tensor in sorted(tower.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        self.folder = Path(folder) / digest.hexdigest()[:32]
        self.layer = layer
        kept = sum(file.stat().st_size for file in self.folder.glob("*/*.safetensors"))
        self.left = (limit - kept) / processes

    @staticmethod
    def key(image: Image) -> str:
        """Hash of the decoded image, so that the same image in another file or table is found."""
        return hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).hexdigest()

    def load(self, key: str) -> Tensor | None:
        """Features [tokens, width] of an image, or None if they are not cached."""
        file = self._file(key)
        return load_file(file)["features"] if file.exists() else None

    def store(self, key: str, features: Tensor) -> None:
        """Store features [tokens, width] atomically, if the limit allows it."""
        file = self._file(key)
        size = features.numel() * features.element_size()
        if size > self.left or file.exists():
            return
        with replacing(file) as unfinished:
            save_file({"features": features.detach().cpu().contiguous()}, unfinished)
            self.left -= unfinished.stat().st_size

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def complete(self, batch: dict[str, Any], tower: PreTrainedModel) -> dict[str, Any]:
        """Replace the pixels of a collated batch by features [images, tokens, width], computing what is missing."""
        keys, known = batch.pop("image_keys", None), batch.pop("image_features", {})
        if keys is None:
            return batch
        missing = [i for i in range(len(keys)) if i not in known]
        if missing:
            with torch.no_grad():
                states = tower(batch["pixel_values"], output_hidden_states=True).hidden_states[self.layer]
            for i, features in zip(missing, states, strict=True):
                self.store(keys[i], features)
                known[i] = features
        batch["pixel_values"] = torch.stack([known[i] for i in range(len(keys))])
        return batch

    def attach(self, tower: PreTrainedModel) -> None:
        """Make the tower pass features [images, tokens, width] through; it still encodes pixels [images, 3, H, W]."""
        tower.forward = partial(_pass_features, tower.forward, self.layer)  # type: ignore[method-assign]


def _pass_features(encode: Callable, layer: int, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
    if pixel_values.dim() == 4:
        return encode(pixel_values, **kwargs)
    states = (pixel_values,) * (-layer if layer < 0 else layer + 1)  # only the one at `layer` is read
    return BaseModelOutputWithPooling(hidden_states=states)
