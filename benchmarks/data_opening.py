"""Time and memory to open training data: rows in LLaVA's JSON are checked, tokenized and filtered.

python -m benchmarks.data_opening --rows 100000 --text-tokens 100 --tokenizer FOLDER

The rows are synthetic and as long as those of LLaVA-558K or as `--text-tokens` says: a short question, a caption of
lognormal length and one of 100 image files; one row in 2,000 is bad. They are opened once without a cache and once
from it, each time in its own process. CPU time is that of all processes. The growth of memory is the first process's
peak of resident memory minus its value before opening. `extrapolated` is to LLaVA-558K.
"""

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from transformers import PreTrainedTokenizerBase

from benchmarks.record import environment, write
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer


LLAVA_558K = 558_128
WORDS = [f"{a}{b}" for a in ("ta", "re", "mi", "so", "lu", "no", "pe") for b in ("n", "st", "ring", "", "ble", "d")]
WORDS_A_ROW = 12.0  # the median of LLaVA-558K's captions
SPREAD = 0.5  # of the logarithm of their length
IMAGE_TOKENS = 729


def make_data(folder: Path, rows: int, words_a_row: float = WORDS_A_ROW) -> None:
    """Write FOLDER/data.json and FOLDER/images; captions have a median of `words_a_row` words."""
    (folder / "images").mkdir()
    for i in range(100):
        Image.new("RGB", (32, 32), (i, i, i)).save(folder / "images" / f"{i}.jpg")
    rng = random.Random(0)
    with (folder / "data.json").open("w") as file:
        for i in range(rows):
            words = min(int(rng.lognormvariate(math.log(words_a_row), SPREAD)) + 1, 500)
            turns = [
                {"from": "human", "value": "Provide a brief description of the given image.\n<image>"},
                {"from": "gpt", "value": " ".join(rng.choices(WORDS, k=words))},
            ]
            image = f"{i % 100}.jpg" if i % 2000 else "gone.jpg"
            row = {"id": f"{i:09d}", "image": image, "conversations": turns}
            file.write(("[" if i == 0 else ",\n") + json.dumps(row))
        file.write("]")


def words_for(text_tokens: float, tokenizer: PreTrainedTokenizerBase) -> float:
    """The median number of words whose captions have `text_tokens` tokens in the mean."""
    tokens = len(tokenizer(" ".join(WORDS), add_special_tokens=False)["input_ids"])
    return text_tokens / tokens * len(WORDS) / math.exp(SPREAD**2 / 2)


def cpu_seconds() -> float:
    """CPU time of this process and of the workers that have ended."""
    return sum(os.times()[:4])


def open_once(folder: Path, checkpoint: Path) -> None:
    """Open the data and print time and memory; needs its own process, because memory is never returned."""
    from modeling_aligned_llava.loading.chat_templates import chat_template
    from train.data.prepared import open_training_data, row_lengths
    from train.data.sources import read_sources
    from train.data.tokenization import Tokenization

    tokenizer = SavedTokenizer.from_pretrained(checkpoint)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image = tokenizer.get_vocab()["<image>"]
    how = Tokenization(tokenizer, chat_template("plain"), image, IMAGE_TOKENS, max_length=2048)
    how([{"messages": [{"role": "assistant", "content": [{"type": "text", "text": "warm"}]}], "images": []}])
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024
    start, cpu = time.perf_counter(), cpu_seconds()
    data = open_training_data(read_sources(str(folder / "data.json"), str(folder / "images")), how, folder / "cache")
    lengths = row_lengths(data.dataset)
    seconds, used = time.perf_counter() - start, cpu_seconds() - cpu
    assert data.opened == len(data.dataset) + len(data.bad_rows)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    result = {
        "rows": data.opened,
        "bad_rows": len(data.bad_rows),
        "mean_length": float(lengths.mean()),
        "mean_text_tokens": float(lengths.mean()) - IMAGE_TOKENS,
        "seconds": seconds,
        "rows_per_second": data.opened / seconds,
        "cpu_seconds": used,
        "memory_growth_mb": growth,
    }
    print(json.dumps(result))  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_opening", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--text-tokens", type=float, help="mean text tokens a row (default: as many as 14 words have)")
    parser.add_argument("--tokenizer", type=Path, default=Path("tinyworld/backbones/language"), help="folder")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open:
        open_once(args.open, args.tokenizer)
        return
    with tempfile.TemporaryDirectory() as folder:
        words = WORDS_A_ROW
        if args.text_tokens:
            words = words_for(args.text_tokens, SavedTokenizer.from_pretrained(args.tokenizer))
        make_data(Path(folder), args.rows, words)
        command = [sys.executable, "-m", "benchmarks.data_opening", "--open", folder, "--tokenizer", args.tokenizer]
        first, cached = (
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])  # noqa: S603
            for _ in range(2)
        )
    factor = LLAVA_558K / args.rows
    result = {
        "benchmark": "data_opening",
        "tokenizer": args.tokenizer.name,
        "first": first,
        "cached": cached,
        "extrapolated": {
            "rows": LLAVA_558K,
            "first_seconds": first["seconds"] * factor,
            "cached_seconds": cached["seconds"] * factor,
        },
        **environment(),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
