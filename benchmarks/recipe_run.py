"""A recipe from end to end: assembly and five steps of stage 1 with `train.sft`, then the norm profile of the result.

    python -m benchmarks.recipe_run --shape toy

Backbones have random weights; rows are those of `make_rows`, which tinyworld's tokenizer cuts into more tokens. On a
GPU, `--shape 3b` needs 25 GB of disk for temporary files.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.random_checkpoints import write_backbones
from benchmarks.record import environment, options, write
from benchmarks.training_worlds import SHAPES, make_rows


RECIPE = "configuration/train/llama-3.2-3b/stage1.yaml"
METHOD, STEPS, STEP_ROWS, IMAGES = "norm-gwc", 5, 64, 64


def run(*command: str | Path) -> float:
    """Run `python -m COMMAND`; return its seconds."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *map(str, command)], stdout=sys.stderr, check=True)  # noqa: S603
    return time.perf_counter() - start


def measure(shape: str, device: str, folder: Path) -> dict[str, Any]:
    """Write backbones, rows and images into `folder`, train and profile."""
    start = time.perf_counter()
    write_backbones(folder / "backbones", shape, device)
    rows = make_rows(replace(SHAPES[shape], global_batch=STEP_ROWS, steps=STEPS), 1, folder / "data")
    seconds = {"backbones and rows": time.perf_counter() - start}
    trained = folder / "trained"
    settings: dict[str, Any] = {
        "config": RECIPE,
        "method": METHOD,
        "vision_tower": folder / "backbones/vision",
        "language_model": folder / "backbones/language",
        "data_path": rows,
        "image_folder": rows.parent,
        "data_cache": folder / "cache",
        "output_dir": trained,
        "global_batch_size": STEP_ROWS,
        "max_steps": STEPS,
        "save_strategy": "no",
        "logging_steps": 1,
        **({} if device == "cuda" else {"bf16": "false", "use_cpu": "true"}),
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    seconds["train.sft"] = run("train.sft", *words)
    profile = folder / "profile.json"
    program = ("eval.diagnostics", "profile")
    seconds["profile"] = run(*program, trained, "--images", rows.parent, "--limit", str(IMAGES), "--json", profile)
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "seconds": seconds,
        "losses": [line["loss"] for line in log],
        "peak_memory_bytes": log[-1].get("peak_memory_bytes"),
        "profiled_images": json.loads(profile.read_text(encoding="utf-8"))["images"],
    }


def main() -> None:
    parser = options("benchmarks.recipe_run", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=["toy", "3b", "7b"], default="toy")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args.shape, args.device, Path(folder))
    setup = {"recipe": RECIPE, "method": METHOD, "shape": args.shape, "device": args.device}
    sizes = {"steps": STEPS, "global_batch": STEP_ROWS}
    write({"benchmark": "recipe_run", **setup, **sizes, **figures, **environment()}, args.out)


if __name__ == "__main__":
    main()
