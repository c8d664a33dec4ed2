"""Do answers depend on batching, or on the engine? Batch sizes 1, 4 and 16, with and without shared prefixes, and vLLM
(`--vllm PATH/bin/vllm`), on all nine tasks.

python -m benchmarks.answer_agreement CHECKPOINT --data ROOT --out benchmarks/results/answer_agreement.json

Compared with one row at a time: the number of answers that differ (generation) and the largest change of a
log-likelihood (text tasks), in float32 and in bfloat16. In float32 no answer should differ; in bfloat16 padding flips
near ties, which is why every recorded answer has its batch size and dtype.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.record import environment, write


DTYPES = ("float32", "bfloat16")


def ways(vllm: str | None) -> dict[tuple[str, str], list[str]]:
    """(dtype, way) -> options of the evaluation; the first of each dtype is the reference."""
    found = {(dtype, f"batch {size}, shared"): ["--batch-size", str(size)] for dtype in DTYPES for size in (1, 4, 16)}
    found["float32", "batch 16, plain"] = ["--batch-size", "16", "--no-shared-prefix"]
    if vllm:
        served = ["--batch-size", "16", "--engine", vllm, "--trust-remote-code"]
        found |= {(dtype, "batch 16, vLLM"): served for dtype in DTYPES}
    return found


def evaluate(checkpoint: Path, data: Path, run: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "eval.suite", "--run", run, "--data", data, "--models", f"model={checkpoint}"]
    command += ["--max-new-tokens", 16, *options]
    subprocess.run([str(word) for word in command], check=True)  # noqa: S603


def read_answers(run: Path) -> dict[str, dict[tuple, str]]:
    """Task -> (document, prompt, image) -> answer."""
    answers: dict[str, dict[tuple, str]] = defaultdict(dict)
    for log in sorted((run / "answers").glob("*.jsonl")):
        for line in log.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            answers[log.stem.removeprefix("model.")][row["document"], row["prompt"], row["image"]] = row["answer"]
    return answers


def compare(found: dict[tuple, str], reference: dict[tuple, str]) -> dict[str, Any]:
    if found.keys() != reference.keys():
        raise ValueError("the two runs did not answer the same questions")
    differing = sum(found[key] != reference[key] for key in reference)
    if not next(iter(reference.values())).startswith("["):
        return {"answers": len(reference), "differing": differing}
    gaps = [abs(json.loads(found[key])[0] - json.loads(reference[key])[0]) for key in reference]
    return {"log_likelihoods": len(reference), "largest_change": max(gaps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="mirrors of the benchmarks")
    parser.add_argument("--tasks", nargs="+", default=[], help="default: all nine")
    parser.add_argument("--vllm", metavar="PROGRAM", help="ask vLLM too")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    from eval.data.benchmarks import BENCHMARKS

    os.environ["OMP_NUM_THREADS"] = "1"
    results: dict[str, Any] = {}
    references: dict[str, dict[str, dict[tuple, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for (dtype, way), options in ways(args.vllm).items():
            run = Path(folder) / f"{dtype}-{len(results)}"
            tasks = args.tasks or [b.key for b in BENCHMARKS]
            evaluate(args.checkpoint, args.data, run, ["--dtype", dtype, *options, "--tasks", *tasks])
            answers = read_answers(run)
            reference = references.setdefault(dtype, answers)
            results[f"{dtype}, {way}"] = {task: compare(answers[task], reference[task]) for task in answers}
    write(
        {
            "benchmark": "answer_agreement",
            **environment(),
            "against": "batch 1",
            "ways": results,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
