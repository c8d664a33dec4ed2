"""Random models and synthetic rows for training: shapes, a tokenizer of any size, lognormal text lengths."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessor,
    SiglipVisionConfig,
)

from benchmarks.shapes import SIZES
from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration, method_fields
from modeling_aligned_llava.assembly.from_backbones import patches
from modeling_aligned_llava.loading.chat_templates import chat_template


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, of its rows and of a step.

    Args:
        text, vision: of `benchmarks.shapes`.
        global_batch: rows of a step.
        micro_batch: rows, on both sides. None: ours by tokens, stock the best of several.
        steps: of a training. Without `micro_batch`, the first warms up and is not measured.
    """

    text: dict[str, Any]
    vision: dict[str, Any]
    global_batch: int
    micro_batch: int | None
    steps: int


SHAPES = {
    "40m": Shape(**SIZES["40m"], global_batch=16, micro_batch=8, steps=4),  # as results on a CPU were measured
    "toy": Shape(**SIZES["toy"], global_batch=8, micro_batch=None, steps=3),
    "3b": Shape(**SIZES["3b"], global_batch=32, micro_batch=None, steps=4),
    "7b": Shape(**SIZES["7b"], global_batch=32, micro_batch=None, steps=4),
}
# Words per turn: exp(normal(mu, sigma)). Stage 1 has one short caption, stage 2 one to four questions and answers.
LENGTHS: dict[int, dict[str, Any]] = {
    1: {"answer": {"mu": 2.9, "sigma": 0.5}},
    2: {"question": {"mu": 2.5, "sigma": 0.6}, "answer": {"mu": 3.9, "sigma": 0.9}, "rounds": [1, 4]},
}
# Learning rates and frozen parts by stage.
RATES = {1: {"multi_modal_projector": 1e-3}, 2: {"^model|^lm_head": 1e-5}}
FROZEN = {1: ["vision_tower", "language_model", "lm_head"], 2: [r"vision_tower\.(head|post_layernorm)\."]}
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "user", "assistant"]


def make_processor(shape: Shape, stage: int) -> LlavaProcessor:
    """A tokenizer of whole words `w0 w1 ...` that fills the vocabulary, and SigLIP's image processor."""
    size = shape.text["vocab_size"]
    words = [*_SPECIAL, *(f"w{i}" for i in range(size - len(_SPECIAL)))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[-1]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|endoftext|>",  # noqa: S106
        extra_special_tokens=["<|im_start|>", "<image>"],
    )
    side = shape.vision["image_size"]
    return LlavaProcessor(
        image_processor=SiglipImageProcessor(size={"height": side, "width": side}),
        tokenizer=tokenizer,
        patch_size=shape.vision["patch_size"],
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=chat_template("plain" if stage == 1 else "tinyworld"),
        image_token="<image>",  # noqa: S106
    )


def make_model(shape: Shape, method: str, *, drop_unused: bool, device: str) -> AlignedLlavaForConditionalGeneration:
    """A random model in float32, with LLaVA's whole vision tower (layer -2 is read) or without its unused layers."""
    vision = SiglipVisionConfig(**shape.vision)
    text = LlamaConfig(**shape.text, max_position_embeddings=8192, bos_token_id=None, eos_token_id=2, pad_token_id=0)
    config = AlignedLlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=_SPECIAL.index("<image>"),
        image_seq_length=patches(vision),
        vision_feature_layer=-2,
        vision_feature_select_strategy="full",
        tie_word_embeddings=shape.text["tie_word_embeddings"],
        **method_fields(method),
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AlignedLlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = 2
    if drop_unused:  # from the same weights, as assembly does
        tower = model.model.vision_tower
        del tower.encoder.layers[-1], tower.head
        tower.use_head = vision.vision_use_head = False
        vision.num_hidden_layers -= 1
        model.config.vision_feature_layer = -1
    return model.float()


def make_rows(shape: Shape, stage: int, folder: Path, seed: int = 0) -> Path:
    """Write rows in LLaVA's format and their images of noise; return the JSON file."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    lengths = LENGTHS[stage]

    def words(kind: str) -> str:
        count = max(1, round(rng.lognormvariate(**lengths[kind])))
        return " ".join(f"w{rng.randrange(shape.text['vocab_size'] - len(_SPECIAL))}" for _ in range(count))

    rows = []
    for i in range(shape.global_batch * shape.steps):
        noise = Image.frombytes("RGB", (40, 30), rng.randbytes(40 * 30 * 3)).resize((640, 480))
        noise.save(folder / f"{i}.jpg")
        rounds = 1 if stage == 1 else rng.randint(1, 4)
        turns = []
        for n in range(rounds):
            asked = words("question") if stage == 2 else "w0"
            turns.append({"from": "human", "value": f"<image>\n{asked}" if n == 0 else asked})
            turns.append({"from": "gpt", "value": words("answer")})
        rows.append({"id": str(i), "image": f"{i}.jpg", "conversations": turns})
    path = folder / f"stage{stage}.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path
