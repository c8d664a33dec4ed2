"""Time and peak memory of the plugin at the paper's size: SigLIP-SO400M-patch14-384 and Llama-3.2-3B, random weights.

python -m benchmarks.real_shapes --folder FOLDER --out benchmarks/results/real_shapes.json

The backbones are written in the layout of the Hub's: SigLIP with its text tower in float32, Llama in bfloat16. Then
each step runs in its own process: assembly; loading, and an answer about a 384-pixel image in 729 visual tokens; the
norm profile of two images, in float32 and in bfloat16. Peak memory is resident memory, with imports and mapped pages
of the checkpoints; `from_pretrained` only maps them, and the first forward pass reads them. FOLDER needs 20 GB of
disk and is emptied at the end; the machine needs 19 GB of memory.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
)

from benchmarks.record import environment, write
from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.inference.prompt import user_turn
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer


TOKENIZER = Path(__file__).parents[1] / "tinyworld/backbones/language"
METHOD, NEW_TOKENS, IMAGES = "norm-gwc", 4, 2
SIDE = 384  # pixels
SO400M = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
SIGLIP = SiglipConfig(
    text_config={**SO400M, "vocab_size": 32_000, "bos_token_id": 1, "eos_token_id": 2},
    vision_config={**SO400M, "image_size": SIDE, "patch_size": 14},
)
LLAMA = LlamaConfig(
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128_256,
    tie_word_embeddings=True,
    max_position_embeddings=131_072,
    rope_parameters={
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    rms_norm_eps=1e-5,
    bos_token_id=128_000,
    eos_token_id=[128_001, 128_008, 128_009],
)


def write_backbones(folder: Path) -> None:
    """Write FOLDER/vision and FOLDER/language, each with what assembly reads beside the weights."""
    torch.manual_seed(0)
    SiglipModel(SIGLIP).save_pretrained(folder / "vision")
    SiglipImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder / "vision")
    language = LlamaForCausalLM._from_config(LLAMA, dtype=torch.bfloat16)
    language.save_pretrained(folder / "language", max_shard_size="1GB")
    SavedTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder / "language")
    _fill_vocabulary(folder / "language/tokenizer.json", LLAMA.vocab_size)


def _fill_vocabulary(file: Path, size: int) -> None:
    """Add unused tokens until the embedding has no free row, so that it must grow for `<image>`, as Llama's must."""
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    first = 1 + max(*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"]))
    vocabulary |= {f"unused {i}": i for i in range(first, size)}
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


def answer(checkpoint: Path, image: Path) -> None:
    """Load the checkpoint, answer one question, and print what it took; needs its own process."""
    start = time.perf_counter()
    model = AlignedLlavaForConditionalGeneration.from_pretrained(checkpoint)
    processor = AutoProcessor.from_pretrained(checkpoint)
    loaded, load_peak = time.perf_counter(), peak_gigabytes("self")
    inputs = processor(
        text=[user_turn(processor, "Describe the image.", images=1)], images=[Image.open(image)], return_tensors="pt"
    ).to(model.dtype)
    ids = model.generate(**inputs, min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS, do_sample=False)
    found = {
        "load": {"seconds": loaded - start, "peak_gb": load_peak},
        "answer_seconds": time.perf_counter() - loaded,
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype),
        "parameters": model.num_parameters(),
        "visual_tokens": int((inputs["input_ids"] == model.config.image_token_id).sum()),
        "new_tokens": ids.shape[1] - inputs["input_ids"].shape[1],
    }
    print(json.dumps(found))  # noqa: T201


def measured(*command: str | Path) -> tuple[dict[str, float], str]:
    """Run `python -m COMMAND`; return its seconds and peak memory, and what it printed."""
    start, peak = time.perf_counter(), 0.0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([sys.executable, "-m", *map(str, command)], stdout=output)  # noqa: S603
        while process.poll() is None:
            time.sleep(0.02)
            peak = max(peak, peak_gigabytes(process.pid))
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        output.seek(0)
        return {"seconds": time.perf_counter() - start, "peak_gb": peak}, output.read()


def peak_gigabytes(pid: int | str) -> float:
    """Peak resident memory of a process so far; 0 if it has just ended, but is not waited for yet.

    `ru_maxrss` will not do: it begins with the peak of the process which started this one.
    """
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(found[1]) * 1024 / 1e9 if found else 0.0


def measure(folder: Path) -> dict[str, Any]:
    """Write backbones into an empty folder and measure each step on them.

    Raises:
        CalledProcessError: a step failed; its error is on stderr.
    """
    backbones, checkpoint, images = folder / "backbones", folder / "checkpoint", folder / "images"
    start = time.perf_counter()
    write_backbones(backbones)
    written = time.perf_counter() - start
    images.mkdir()
    for i in range(IMAGES):
        pixels = torch.randint(0, 256, (SIDE, SIDE, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(images / f"{i}.png")

    towers: list[str | Path] = ["--vision-tower", backbones / "vision", "--language-model", backbones / "language"]
    steps: dict[str, Any] = {}
    steps["assembly"], _ = measured(
        "modeling_aligned_llava.assembly", *towers, "--method", METHOD, "--out", checkpoint
    )
    size = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors")) / 1e9

    answered, printed = measured("benchmarks.real_shapes", "--answer", checkpoint, images / "0.png")
    found = json.loads(printed.splitlines()[-1])
    steps |= {"load": found.pop("load"), "answer": {**answered, "seconds": found.pop("answer_seconds")}}

    profile = folder / "profile.json"
    command = ("eval.diagnostics", "profile", checkpoint, "--images", images, "--json", profile)
    steps["profile"], _ = measured(*command)
    steps["profile in bfloat16"], _ = measured(*command, "--dtype", "bfloat16")
    profiled = json.loads(profile.read_text(encoding="utf-8"))
    return {
        "backbones_seconds": written,
        "checkpoint_gb": size,
        **found,
        "steps": steps,
        "profile": profiled,
    }


def report(found: dict[str, Any], out: Path | None) -> None:
    """Print what `measure` found, and write it to `out` if given."""
    where = environment()
    where["hardware"]["threads"] = found["threads"]  # of the steps, not of this process
    result = {name: value for name, value in found.items() if name not in ("threads", "profile")}
    write({"benchmark": "real_shapes", **where, "method": METHOD, **result}, out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_shapes", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument(
        "--folder", type=Path, help="folder with 20 GB of free disk (default: that of temporary files)"
    )
    parser.add_argument("--answer", type=Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        answer(*args.answer)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        report(measure(Path(folder)), args.out)


if __name__ == "__main__":
    main()
