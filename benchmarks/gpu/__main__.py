"""Everything that needs a GPU, with one command: ceilings, training, evaluation, overheads and numerics.

    python -m benchmarks.gpu                       # all parts, the most valuable first
    python -m benchmarks.gpu --only stage2 norm    # some of them
    python -m benchmarks.gpu --list                # what there is, and its minutes on an H100
    python -m benchmarks.gpu --self-test           # every part at a toy shape on the CPU

Each part is a benchmark of its own process and ends within nine minutes. Its result goes to
OUT/<part>_<hardware>_<yyyymm>.json with a table beside it (.md). A part whose result is there is not run again, so the
same command continues. torch and transformers suffice for most parts; `--list` names what the others need.
"""

import argparse
import importlib
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.build_once import replacing


LIMIT = 9 * 60  # seconds of a part
RESULTS = Path(__file__).parents[1] / "results"
TRAINING = ("trl", "datasets")


@dataclass(frozen=True)
class Part:
    """A benchmark at the paper's shapes.

    Args:
        name: of the result; `module` and `arguments` are its command.
        toy: arguments of the self-test.
        minutes: on an H100, estimated, until it has been run on one.
        needs: packages beside torch and transformers.
        quick: a few seconds at the toy shape.
    """

    name: str
    about: str
    module: str
    arguments: str
    toy: str
    minutes: float
    needs: tuple[str, ...] = ()
    quick: bool = True


TRAIN = "benchmarks.train_throughput"
TOY_TRAINING = "--shape toy --rounds 1"
PARTS = (
    Part("ceilings", "matrix products and copies", "benchmarks.gpu.ceilings", "", "--large-only", 0.5),
    Part(
        "train_stage2_3b",
        "stage 2 at the 3B shape, stock TRL against ours",
        TRAIN,
        "--device cuda --shape llama-3.2-3b --stages 2 --ablation",
        f"{TOY_TRAINING} --stages 2 --ablation",
        6,
        TRAINING,
    ),
    Part(
        "evaluation_3b",
        "POPE, MM-Star and MMLU shapes, a plain batch-1 generate loop against ours",
        "benchmarks.gpu.evaluation",
        "--shape 3b",
        "--shape toy --dtype float32 --fraction 0.12",
        6,
    ),
    Part(
        "train_stage1_3b",
        "stage 1 at the 3B shape, stock TRL against ours",
        TRAIN,
        "--device cuda --shape llama-3.2-3b --stages 1 --ablation",
        f"{TOY_TRAINING} --stages 1 --ablation",
        5,
        TRAINING,
    ),
    Part(
        "numerics",
        "compensated gradient, packed rows, answers in batches",
        "benchmarks.gpu.numerics",
        "--shape 40m",
        "--shape toy --width 64 --fraction 0.17",
        4,
    ),
    Part(
        "norm_overhead",
        "the norm of every method, eager and compiled, in a step of Qwen2.5-7B",
        "benchmarks.norm_overhead",
        "--methods all --compiled --dtype bfloat16 --layers 28 --steps 10",
        "--methods all --tokens 8 --width 112 --steps 1 --passes 1",
        4,
    ),
    Part(
        "profile_overhead",
        "the norm profile over a forward pass",
        "benchmarks.diagnostics_overhead",
        "--width 3072 --layers 28 --dtype bfloat16",
        "--width 64 --layers 2 --side 4 --pairs 2",
        2,
    ),
    Part(
        "train_stage2_3b_flags",
        "stage 2, one setting changed at a time",
        TRAIN,
        "--device cuda --shape llama-3.2-3b --stages 2 --ablation 'without dropped vision layers'"
        " 'without length grouping' 'with packed_rows' 'with packed_rows, flex_attention'",
        f"{TOY_TRAINING} --stages 2 --ablation 'without dropped vision layers' 'without length grouping'"
        " 'with packed_rows' 'with packed_rows, flex_attention'",
        8.5,
        TRAINING,
        quick=False,
    ),
    Part(
        "train_stage2_3b_compiled",
        "stage 2 with torch.compile",
        TRAIN,
        "--device cuda --shape llama-3.2-3b --stages 2 --compile --ablation 'with torch_compile'",
        f"{TOY_TRAINING} --stages 2 --compile --ablation 'with torch_compile'",
        8,
        TRAINING,
        quick=False,
    ),
    Part(
        "train_stage1_3b_cache",
        "stage 1 with the feature cache",
        TRAIN,
        "--device cuda --shape llama-3.2-3b --stages 1"
        " --ablation 'with feature_cache, filling' 'with feature_cache, filled'",
        f"{TOY_TRAINING} --stages 1 --ablation 'with feature_cache, filling' 'with feature_cache, filled'",
        7,
        TRAINING,
        quick=False,
    ),
    Part(
        "train_stage1_7b",
        "stage 1 at the 7B shape, stock TRL against ours",
        TRAIN,
        "--device cuda --shape qwen2.5-7b --stages 1 --ablation",
        f"{TOY_TRAINING} --stages 1 --ablation",
        7,
        TRAINING,
        quick=False,
    ),
    Part(
        "evaluation_harness_3b",
        "POPE and MMLU through lmms-eval and lm-eval themselves",
        "benchmarks.eval_throughput",
        "--shape 3b --device cuda --dtype bfloat16 --rounds 1 --columns pope mmlu_5shot",
        "--shape toy --rounds 1 --batch-size 8 --max-new-tokens 2 --columns pope mmlu_5shot",
        8.5,
        ("lmms_eval", "lm_eval"),
        quick=False,
    ),
)


def missing(part: Part) -> list[str]:
    """Packages that a part needs and this machine does not have."""
    return [name for name in part.needs if find_spec(name) is None]


def file_of(out: Path, part: Part, hardware: str) -> Path:
    """Where a part's result goes."""
    name = re.sub(r"[^a-z0-9]+", "_", hardware.lower()).strip("_")
    return out / f"{part.name}_{name}_{datetime.now(UTC):%Y%m}.json"


def numbers(result: Any, path: str = "") -> list[tuple[str, str]]:
    """Every number and short text of a result, by its path; lists are left to the JSON."""
    if isinstance(result, dict):
        return [row for name, value in result.items() for row in numbers(value, f"{path} / {name}" if path else name)]
    if isinstance(result, bool) or result is None or isinstance(result, list):
        return []
    return [(path, f"{result:.4g}" if isinstance(result, float) else str(result))]


def report(part: Part, result: dict[str, Any]) -> str:
    """A result as Markdown."""
    lines = [f"# {part.about}", "", f"`python -m {part.module} {part.arguments}`", "", "| | |", "|---|--:|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in numbers(result))]) + "\n"


def run(part: Part, arguments: str, file: Path) -> str | None:
    """Run a part in its own process; why it failed, if it did."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "result.json"
        command = [sys.executable, "-m", part.module, *shlex.split(arguments), "--out", str(written)]
        try:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=LIMIT)  # noqa: S603
        except subprocess.TimeoutExpired:
            return f"not done after {LIMIT // 60} minutes"
        if done.returncode or not written.exists():
            return (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        result = json.loads(written.read_text(encoding="utf-8"))
    for path, text in ((file.with_suffix(".md"), report(part, result)), (file, json.dumps(result, indent=2) + "\n")):
        with replacing(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    return None


def run_all(parts: list[Part], out: Path) -> None:
    """Run the parts that have no result yet.

    Raises:
        UserError: there is no GPU, or parts failed.
    """
    if not torch.cuda.is_available():
        raise UserError("benchmarks.gpu measures a CUDA GPU, and there is none here; --self-test runs without one")
    hardware, failed = torch.cuda.get_device_name(), []
    for number, part in enumerate(parts, 1):
        file, start = file_of(out, part, hardware), time.monotonic()
        remaining = sum(each.minutes for each in parts[number - 1 :] if not file_of(out, each, hardware).exists())
        _say(f"{number}/{len(parts)} {part.name}: {part.about} (about {part.minutes:g} min, {remaining:g} min in all)")
        if file.exists():
            _say(f"  done before: {file}")
        elif lacking := missing(part):
            _say(f"  skipped: needs {', '.join(lacking)}")
        elif (reason := run(part, part.arguments, file)) is not None:
            failed.append(part.name)
            _say(f"  failed: {reason}")
        else:
            _say(f"  {time.monotonic() - start:.0f} s: {file}")
    if failed:
        raise UserError(f"failed: {', '.join(failed)}; the same command runs them again")


def self_test(parts: Sequence[Part] = PARTS) -> dict[str, dict[str, Any]]:
    """Results of the parts at their toy shapes: quick ones are made in this process, others in processes of their own.

    Raises:
        UserError: a part failed.
    """
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            if lacking := missing(part):
                _say(f"{part.name}: skipped, needs {', '.join(lacking)}")
                continue
            file, start = Path(folder) / f"{part.name}.json", time.monotonic()
            if part.quick:
                with redirect_stdout(StringIO()):
                    importlib.import_module(part.module).main([*shlex.split(part.toy), "--out", str(file)])
            elif (reason := run(part, part.toy, file)) is not None:
                raise UserError(f"{part.name}: {reason}")
            results[part.name] = json.loads(file.read_text(encoding="utf-8"))
            assert report(part, results[part.name])
            _say(f"{part.name}: {time.monotonic() - start:.1f} s")
    return results


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--list", action="store_true", help="print the parts")
    parser.add_argument(
        "--self-test", action="store_true", help="toy shapes on the CPU, which say nothing about speed"
    )
    args = parser.parse_args()
    chosen = [part for part in PARTS if args.only is None or part.name in args.only]
    if args.list:
        for part in chosen:
            needs = f"; needs {', '.join(part.needs)}" if part.needs else ""
            _say(f"{part.name}: {part.about}, about {part.minutes:g} min{needs}")
    elif args.self_test:
        self_test(chosen)
    else:
        run_all(chosen, args.out)


if __name__ == "__main__":
    run_main(main)
