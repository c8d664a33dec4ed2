"""Documents per second of this package's evaluation and of the stock path, on one random LLaVA and the same documents.

python -m benchmarks.eval_throughput --out benchmarks/results/eval_throughput.json

Stock is lmms-eval's `llava_hf` (batch size 1, the only one it supports; needs decord) and lm-eval's `hf-multimodal` at
its best batch size of 1, 8 and 16. Both sides run the stock tasks through `simple_evaluate`. Timed is the model's own
call (`generate_until`, `loglikelihood`), because reading the tasks costs both sides the same. A random network never
ends an answer, so each has `--max-new-tokens` tokens, by default the limit of tinyworld's own evaluation. With `--vllm
COMMAND` (`'PATH/bin/vllm --model-impl transformers'`) a server answers the adapter's questions too.
"""

import os
import tempfile


# Read when datasets is imported. Its cache identifies a mirror by name, not by content, so every run gets a new one.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HOME=tempfile.mkdtemp())

import argparse
import random
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.random_checkpoints import SHAPES, write_checkpoint
from benchmarks.record import environment, options, peak_memory, write
from eval.run.vllm_server import vllm_server
from modeling_aligned_llava.inference.served import Server
from tinyworld import benchmarks as tinyworld
from tinyworld.facts import FACTS
from tinyworld.language import Choice
from tinyworld.scenes import LETTERS


SUBJECTS = ("mmlu_anatomy", "mmlu_astronomy")
TASKS = {
    "pope": ("pope",),
    "mmbench": ("mmbench_en_dev_static",),
    "mmstar": ("mmstar",),
    "mmlu_5shot": SUBJECTS,
    "hellaswag": ("hellaswag",),
}
IMAGES = 4  # of POPE, with 18 questions each; the other tasks have a matching number
SHOTS = {"mmlu_5shot": 5, "hellaswag": 0}  # of the text tasks
STOCK_BATCHES = (1, 8, 16)  # tried by the stock text model


def write_documents(root: Path, images: int) -> None:
    """Write tinyworld's benchmarks, cut to `images`, and two MMLU subjects of 50 questions with five examples."""
    stories = tinyworld.hellaswag()
    stories = replace(
        stories,
        configs={name: {s: rows[:50] for s, rows in splits.items()} for name, splits in stories.configs.items()},
    )
    numbers = random.Random(0)
    exam = tinyworld.mmlu()
    subjects = {}
    for subject in SUBJECTS:
        rows: list[dict[str, Any]] = []
        for fact in numbers.sample(FACTS, 55):
            choice = Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, numbers)
            rows.append({"question": choice.question, "subject": subject, "choices": list(choice.options)})
            rows[-1]["answer"] = LETTERS.index(choice.letter)
        subjects[subject.removeprefix("mmlu_")] = {"test": rows[5:], "dev": rows[:5]}
    for benchmark in (
        tinyworld.pope(images=images),
        tinyworld.mmbench(questions=4 * images),
        tinyworld.mmstar(per_group=max(1, images // 2)),
        stories,
        replace(exam, configs=subjects),
    ):
        tinyworld.write_benchmark(root, benchmark)


def timed(model: Any, method: str, spent: list[float]) -> None:
    """Wrap the instance's `method` so that it appends its seconds to `spent`."""
    call = getattr(model, method)

    def clocked(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        reply = call(*arguments, **options)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
        return reply

    setattr(model, method, clocked)


def run_lmms(model: Any, tasks: tuple[str, ...], max_new_tokens: int) -> tuple[float, int, list[str]]:
    """Seconds, documents and answers of stock lmms-eval tasks."""
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    spent: list[float] = []
    timed(model, "generate_until", spent)
    results = simple_evaluate(
        model=model,
        tasks=list(tasks),
        batch_size=1,
        task_manager=TaskManager("ERROR", model_name="aligned_llava"),
        gen_kwargs=f"max_new_tokens={max_new_tokens}",
        bootstrap_iters=0,
        process_docs_parallel=1,
    )
    rows = [row for rows in results["samples"].values() for row in rows]
    return sum(spent), len(rows), [str(row["filtered_resps"][0]).strip() for row in rows]


def run_lm(model: Any, tasks: tuple[str, ...], shots: int) -> tuple[float, int, list[float]]:
    """Seconds, documents and log-likelihoods of stock lm-eval tasks."""
    from lm_eval.evaluator import simple_evaluate

    spent: list[float] = []
    timed(model, "loglikelihood", spent)
    results = simple_evaluate(model=model, tasks=list(tasks), num_fewshot=shots, bootstrap_iters=0)
    rows = [row for rows in results["samples"].values() for row in rows]
    return sum(spent), len(rows), [float(answer[0]) for row in rows for answer in row["filtered_resps"]]


def compare(sides: dict[str, Callable[[], tuple]], rounds: int) -> dict[str, Any]:
    """Run all sides in turn, `rounds` times. Ratios to the first, `stock`, are medians over rounds."""
    runs = [{name: run() for name, run in sides.items()} for _ in range(rounds)]
    seconds = {name: [run[name][0] for run in runs] for name in sides}
    _, documents, expected = runs[0]["stock"]
    return {
        "documents": documents,
        **{f"{name}_per_s": documents / statistics.median(seconds[name]) for name in sides},
        "ratios": {
            name: statistics.median(a / b for a, b in zip(seconds["stock"], times, strict=True))
            for name, times in seconds.items()
        },
        "seconds": seconds,
        "answers": len(expected),
        "same_answers": {name: _same(expected, runs[0][name][2]) for name in sides},
    }


def _same(expected: list, answers: list) -> int:
    """How many answers, or log-likelihoods, are the same."""
    return sum(a == b if isinstance(a, str) else abs(a - b) < 1e-3 for a, b in zip(expected, answers, strict=True))


def measure_column(
    name: str, checkpoint: Path, args: argparse.Namespace, servers: dict[str, Server | None]
) -> dict[str, Any]:
    """Both sides on the tasks of a column; ours with each of the servers, or without."""
    from lm_eval.models.hf_vlms import HFMultimodalLM
    from lmms_eval.models.simple.llava_hf import LlavaHf

    from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
    from modeling_aligned_llava.harness.lmms_eval_model import AlignedLlava

    is_text, where = name in SHOTS, {"device": args.device, "dtype": args.dtype}
    adapter: Any = AlignedLlavaLM if is_text else AlignedLlava

    def ask(model: Any) -> tuple:
        if is_text:
            return run_lm(model, TASKS[name], SHOTS[name])
        return run_lmms(model, TASKS[name], args.max_new_tokens)

    def stock(batch_size: int) -> tuple:
        if is_text:
            return ask(HFMultimodalLM(str(checkpoint), batch_size=batch_size, **where))
        return ask(LlavaHf(str(checkpoint), device_map=args.device, batch_size=batch_size, **where))

    def ours(server: Server | None) -> tuple:
        options = {"batch_size": args.batch_size, "fingerprint": "benchmark", "server": server}
        return ask(adapter(str(checkpoint), **options, **where))

    tried = {size: stock(size)[0] for size in (STOCK_BATCHES if is_text else ())}
    best = min(tried, key=lambda size: tried[size], default=1)
    sides: dict[str, Callable[[], tuple]] = {"stock": partial(stock, best)}
    sides |= {side: partial(ours, server) for side, server in servers.items()}
    return compare(sides, args.rounds) | ({"stock_seconds_by_batch_size": tried} if tried else {})


def measure(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    checkpoint, root = folder / "checkpoint", folder / "data"
    parameters = write_checkpoint(checkpoint, getattr(torch, args.dtype), args.shape, args.device)
    write_documents(root, IMAGES)
    os.chdir(root)
    servers: dict[str, Server | None] = {"ours": None}
    if args.vllm:
        servers["vllm"] = stack.enter_context(vllm_server(args.vllm, str(checkpoint), args.dtype, args.batch_size))
    results = {name: measure_column(name, checkpoint, args, servers) for name in args.columns}
    return {
        "benchmark": "eval_throughput",
        **environment(),
        "shape": args.shape,
        "parameters": parameters,
        "visual_tokens": 729,
        "dtype": args.dtype,
        "batch_size": args.batch_size,
        "max_new_tokens": args.max_new_tokens,
        "peak_memory_bytes_of_stock_and_ours": peak_memory(args.device),
        "engines": {name: server.engine if server else "transformers" for name, server in servers.items()},
        "tasks": results,
    }


def main() -> None:
    parser = options("benchmarks.eval_throughput", __doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES), default="default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--columns", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--vllm", metavar="COMMAND", help="serve the checkpoint with this too")
    args = parser.parse_args()
    out = args.out.resolve() if args.out else None
    with tempfile.TemporaryDirectory() as folder:
        with ExitStack() as stack:
            results = measure(args, Path(folder), stack)
        write(results, out)
        os.chdir("/")
    shutil.rmtree(os.environ["HF_HOME"])


if __name__ == "__main__":
    main()
