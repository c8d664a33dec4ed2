"""How checkpoints are evaluated: the options that `eval.suite`, `eval.run_all` and the study share.

It imports the standard library alone: `eval/run_all.sh` checks its options before anything is installed.
"""

import argparse
from dataclasses import dataclass, field, fields
from pathlib import Path

from eval.data.benchmarks import BENCHMARKS, BY_KEY, EXTRA_BENCHMARKS


TRANSFORMERS = "transformers"
SEED = 42  # of train/run.sh, unless another is given


@dataclass(kw_only=True)
class Options:
    """One evaluation.

    Attributes:
        run: folder of the run.
        data: data root.
        tasks: keys of the benchmarks.
        limit: rows of each task, for a trial; None for all.
        jobs: worker processes side by side; None for one a GPU, or 2 without.
        batch_size: rows a forward pass.
        max_new_tokens: upper limit on the length of answers; None for the tasks' own.
        dtype: precision of all models.
        device: "auto", "cpu" or "cuda".
        no_shared_prefix: compute every row alone, as the stock harnesses do.
        trust_remote_code: run model code found in a checkpoint.
        engine: "transformers", or vLLM's program with its own options.
    """

    run: Path
    data: Path
    tasks: list[str] = field(default_factory=lambda: [benchmark.key for benchmark in BENCHMARKS])
    limit: int | None = None
    jobs: int | None = None
    batch_size: int = 64
    max_new_tokens: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    no_shared_prefix: bool = False
    trust_remote_code: bool = False
    engine: str = TRANSFORMERS

    @classmethod
    def of(cls, args: argparse.Namespace, **changed: object) -> "Options":
        """From a parsed command line; `changed` replaces some of it."""
        given = {each.name: getattr(args, each.name) for each in fields(cls) if hasattr(args, each.name)}
        return cls(**(given | changed))

    @property
    def folder(self) -> Path:
        """Where results are written: the run's folder; a trial has its own in it."""
        return self.run if self.limit is None else self.run / f"limit-{self.limit}"


def count(text: str) -> int:
    """A whole number from 1.

    Raises:
        argparse.ArgumentTypeError: it is not.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return int(text)


def add_options(p: argparse._ActionsContainer) -> None:
    """The options that say how models are evaluated."""
    p.add_argument(
        "--tasks",
        nargs="+",
        choices=list(BY_KEY),
        default=[benchmark.key for benchmark in BENCHMARKS],
        metavar="TASK",
        help=f"default: the nine of Table 4; besides them {', '.join(b.key for b in EXTRA_BENCHMARKS)}",
    )
    p.add_argument(
        "--limit", type=count, metavar="N", help="a trial on the first N rows of each task, written to RUN/limit-N"
    )
    p.add_argument("--jobs", type=count, metavar="N", help="processes side by side (default: one a GPU, or 2 without)")
    p.add_argument("--batch-size", type=count, metavar="N", default=64, help="rows a forward pass (default 64)")
    p.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="precision of all models (default auto: bfloat16 on a GPU, float32 without)",
    )
    p.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda")
    p.add_argument(
        "--no-shared-prefix", action="store_true", help="compute every row alone, as the stock harnesses do"
    )
    p.add_argument("--trust-remote-code", action="store_true", help="run model code found in a checkpoint")
    p.add_argument(
        "--engine",
        default=TRANSFORMERS,
        metavar="VLLM",
        help="answer with vLLM: its program, with options of its own if need be, as in 'PATH/bin/vllm --seed 1'",
    )
