"""A stand-in for the nine benchmarks, with the files, columns, types and splits that the Hub has at the revisions of
`eval/data/benchmarks.py`, and a tiny random LLaVA to answer them.
"""

import random
from pathlib import Path
from typing import Any

import torch
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as PILImage
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipImageProcessor,
    SiglipVisionConfig,
)

from tests.modeling_aligned_llava.tiny_parts import template


TEXT = Value("string")
LETTERS = "ABCD"
OPTIONS = ["red", "green", "blue", "black"]
OCR_TYPES = ["Regular Text Recognition", "Scene Text-centric VQA", "Doc-oriented VQA", "Key Information Extraction"]
SEEDBENCH_NOTES = ("data_id", "question_image_subtype", "data_source", "data_type", "level", "subpart", "version")
SCIENCEQA_NOTES = ("task", "grade", "subject", "topic", "category", "skill", "lecture", "solution")
POPE_PARTS = ("adversarial", "popular", "random")
SUBJECTS_FILES = "tasks/mmlu/default/mmlu_*.yaml"
Table = tuple[list[dict[str, Any]], Features]


def image_of(index: int) -> PILImage.Image:
    return PILImage.new("RGB", (30 + 6 * (index % 3), 28), (index * 37 % 256, index * 91 % 256, 120))


def question(index: int) -> str:
    return f"Question {index}: what colour is the box?" + " please" * (index % 5)


def table(rows: list[dict[str, Any]], **types: Any) -> Table:
    """Rows whose columns are images by the name `image`, of these types, or text."""
    types = {"image": Image(), **types}
    return rows, Features({name: types.get(name, TEXT) for name in rows[0]})


def write_dataset(
    folder: Path, configs: dict[str, dict[str, Table]], file: str | None = None, shards: int = 1
) -> None:
    """A dataset folder as the Hub has it: a card that lists the configurations, and parquet files.

    Args:
        file: the only file's name; None: `CONFIG/SPLIT-00000-of-00001.parquet`, the default configuration's in `data`.
        shards: files of each split of the default configuration.
    """
    card = ["---", "configs:"]
    for config, splits in configs.items():
        card += [f"- config_name: {config}", "  data_files:"]
        for split, (rows, features) in splits.items():
            place = f"{'data' if config == 'default' else config}/{split}-"
            count = shards if config == "default" else 1
            for shard in range(count):
                path = folder / (file or f"{place}{shard:05}-of-{count:05}.parquet")
                path.parent.mkdir(parents=True, exist_ok=True)
                Dataset.from_list(rows, features=features).shard(count, shard).to_parquet(path)
            card += [f"  - split: {split}", f"    path: {file or place + '*'}"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))


def mmbench(n: int, split: str = "dev", lacking: tuple[str, ...] = ()) -> Table:
    """Every question twice, its options rotated by one the second time."""
    rows = []
    for index in range(n):
        base, turn = divmod(index, 2)
        turned = OPTIONS[turn:3] + OPTIONS[:turn]
        row = {"index": base + turn * 1_000_000, "image": image_of(base), "answer": LETTERS[turned.index("green")]}
        row |= dict(zip(LETTERS, [*turned, "nan"], strict=True))
        row |= {"question": question(base), "hint": "nan", "source": "x", "comment": "nan", "split": split}
        row |= {"category": "ocr", "L2-category": "logic_reasoning"}
        rows.append({name: value for name, value in row.items() if name not in lacking})
    return table(rows, index=Value("int64"))


def mmstar(n: int) -> Table:
    groups = [
        ("math", "geometry"),
        ("math", "geometry"),
        ("math", "statistical reasoning"),
        ("logic", "diagram reasoning"),
    ]
    rows = [
        {
            "index": i,
            "question": question(i) + "\nOptions: A: red, B: green, C: blue, D: black",
            "image": image_of(i),
            "answer": LETTERS[i % 4],
            "category": groups[i % 4][0],
            "l2_category": groups[i % 4][1],
            "meta_info": {"source": "MMBench", "split": "test", "image_path": f"images/{i}.jpg"},
        }
        for i in range(n)
    ]
    return table(rows, index=Value("int64"), meta_info=dict.fromkeys(rows[0]["meta_info"], TEXT))


def pope(n: int) -> Table:
    rows = [
        {
            "id": str(i),
            "question_id": str(i),
            "question": f"Is there a box {i} in the image?",
            "answer": ["yes", "no"][i % 2],
            "image_source": f"COCO_val2014_{i // 2:012}",
            "image": image_of(i // 2),
            "category": POPE_PARTS[3 * i // n],
        }
        for i in range(n)
    ]
    return table(rows)


def seedbench(n: int) -> Table:
    rows = [
        {
            "question_id": str(i),
            "question": question(i),
            **{f"choice_{letter}": option for letter, option in zip(LETTERS, OPTIONS, strict=True)},
            "answer": LETTERS[i % 4],
            "question_image_type": ["chart", "map", "web"][i % 3],
            "image": image_of(i),
            **dict.fromkeys(SEEDBENCH_NOTES, "note"),
        }
        for i in range(n)
    ]
    return table(rows)


def ocrbench(n: int) -> Table:
    rows = [
        {
            "dataset": ["IIIT5K", "HME100k"][i % 2],
            "question": "what is written in the image?",
            "question_type": OCR_TYPES[i % 4],
            "answer": ["CENTRE", f"word{i}"],
            "image": image_of(i % 7),
        }
        for i in range(n)
    ]
    return table(rows, answer=List(TEXT))


def scienceqa(n: int) -> Table:
    rows = [
        {
            "image": image_of(i) if i % 2 == 0 else None,
            "question": question(i),
            "choices": OPTIONS[: 2 + i % 2],
            "answer": i % 2,
            "hint": "Some hint." if i % 3 else "",
            **dict.fromkeys(SCIENCEQA_NOTES, "note"),
        }
        for i in range(n)
    ]
    return table(rows, choices=List(TEXT), answer=Value("int8"))


def ai2d(n: int) -> Table:
    rows = [
        {"question": question(i), "options": OPTIONS, "answer": str(i % 4), "image": image_of(i)} for i in range(n)
    ]
    return table(rows, options=List(TEXT))


def hellaswag(n: int) -> Table:
    rows = [
        {
            "ind": i,
            "activity_label": "Removing ice from car",
            "ctx_a": f"A man number {i} is outside.",
            "ctx_b": "he",
            "ctx": f"A man number {i} is outside. he",
            "source_id": f"activitynet~v_{i}",
            "split": "val",
            "split_type": "indomain",
            "endings": ["runs away quickly.", "scrapes the ice off.", "sings.", "eats a sandwich on the roof."],
            "label": str(i % 4),
        }
        for i in range(n)
    ]
    return table(rows, ind=Value("int32"), endings=List(TEXT))


def mmlu(n: int) -> dict[str, dict[str, Table]]:
    import lm_eval
    import yaml

    types = {"choices": List(TEXT), "answer": ClassLabel(names=list(LETTERS))}
    configs = {}
    for path in sorted(Path(lm_eval.__file__).parent.glob(SUBJECTS_FILES)):
        subject = yaml.safe_load(path.read_text())["dataset_name"]
        rows = [
            {"question": f"{subject} {i}?", "subject": subject, "choices": ["1", "2", "3", "4"], "answer": i % 4}
            for i in range(max(n, 5))
        ]
        parts = {"test": rows[:n], "validation": rows[:n], "dev": rows[:5]}
        configs[subject] = {split: table(part, **types) for split, part in parts.items()}
    tests = [row for splits in configs.values() for row in splits["test"][0]]
    several = table(tests[:5], **types)
    configs["auxiliary_train"] = {"train": several}
    configs["all"] = {
        "test": table(tests, **types),
        **dict.fromkeys(("validation", "dev", "auxiliary_train"), several),
    }
    return configs


def write_mirror(root: Path, n: int = 10, ocr: int = 1000, subject: int = 4) -> Path:
    """All nine benchmarks with `n` rows each (each of MMLU's: `subject`), but OCRBench, whose scorer divides by 1000.

    Configurations, splits and files that no task reads lie beside those that are read.
    """
    translated = {language: {split: mmbench(n, split) for split in ("dev", "test")} for language in ("cn", "en")}
    chinese_culture = mmbench(n, "cc", lacking=("hint", "L2-category"))
    write_dataset(root / "lmms-lab-encoder/MMBench", {"cc": {"test": chinese_culture}} | translated)
    write_dataset(root / "Lin-Chen/MMStar", {"val": {"val": mmstar(n)}}, "mmstar.parquet")
    (root / "Lin-Chen/MMStar/MMStar.tsv").write_text("index\tquestion\n")
    pope_parts = {part: pope(n) for part in POPE_PARTS}
    write_dataset(root / "lmms-lab-encoder/POPE", {"default": {"test": pope(n)}, "Full": pope_parts}, shards=3)
    write_dataset(root / "doolayer/SEED-Bench-2-Plus", {"default": {"test": seedbench(n)}}, shards=2)
    write_dataset(root / "echo840/OCRBench", {"default": {"test": ocrbench(ocr)}})
    splits = {split: scienceqa(n) for split in ("train", "validation", "test")}
    write_dataset(root / "lmms-lab-encoder/ScienceQA", {"ScienceQA-FULL": splits, "ScienceQA-IMG": splits})
    write_dataset(root / "lmms-lab-encoder/ai2d", {"default": {"test": ai2d(n)}}, shards=2)
    endings = {split: hellaswag(n) for split in ("train", "test", "validation")}
    write_dataset(root / "Rowan/hellaswag", {"default": endings})
    write_dataset(root / "cais/mmlu", mmlu(subject))
    return root


def byte_level(first: list[str]) -> Tokenizer:
    """These tokens and the 256 bytes, without merges."""
    words = [*first, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and a few special tokens."""
    special = {
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "additional_special_tokens": ["<|im_start|>", "<image>"],
    }
    return PreTrainedTokenizerFast(tokenizer_object=byte_level([]), **special)


def text_shape(words: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Settings of a tiny Qwen2 or Llama for this tokenizer."""
    return {
        "vocab_size": len(words),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }


def write_llava(folder: Path, seed: int = 0) -> Path:
    """A stock LLaVA checkpoint with 4 visual tokens; its generation config asks for sampling."""
    torch.manual_seed(seed)
    words = tokenizer()
    vision = SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = LlavaConfig(
        vision_config=vision,
        # With weights so large that answers depend on the prompt.
        text_config=Qwen2Config(**text_shape(words), max_position_embeddings=2048, initializer_range=0.3),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=4,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config.update(do_sample=True, temperature=5.0, repetition_penalty=3.0)
    model.save_pretrained(folder)
    processor = LlavaProcessor(
        image_processor=SiglipImageProcessor(size={"height": 28, "width": 28}),
        tokenizer=words,
        patch_size=14,
        vision_feature_select_strategy="full",
        image_token="<image>",  # noqa: S106
        num_additional_image_tokens=0,
        chat_template=template("<image>\n"),
    )
    processor.save_pretrained(folder)
    return folder


def mixed_rows(n: int) -> list[tuple[str, list[PILImage.Image]]]:
    """Prompts of different lengths, every third without an image."""
    rng = random.Random(0)
    return [(question(i) + " really" * rng.randrange(8), [] if i % 3 == 0 else [image_of(i)]) for i in range(n)]
