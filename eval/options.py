"""The options of `bash eval/run_all.sh`, which `python -m eval.options ...` checks, and of `python -m eval.suite`.

It imports the standard library alone, because nothing may be installed yet.
"""

import argparse
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from eval.data.benchmarks import BENCHMARKS, BY_KEY, EXTRA_BENCHMARKS


CONFIGURATION = Path(__file__).resolve().parents[1] / "configuration"
RECIPES = CONFIGURATION / "train"
FINETUNE_RECIPE = RECIPES / "finetune" / "lora.yaml"
TRANSFORMERS = "transformers"
SEED = 42  # of train/run.sh, unless another is given
NINE = [benchmark.key for benchmark in BENCHMARKS]


def read_recipe(backbone: str, name: str) -> dict[str, Any]:
    """A file of the backbone's recipes: `stage1`, `stage2` or `world`; empty if there is none."""
    import yaml

    path = RECIPES / backbone / f"{name}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def count(text: str) -> int:
    """A whole number from 1.

    Raises:
        argparse.ArgumentTypeError: it is not.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return int(text)


def _option(default: Any, text: str, **argument: Any) -> Any:
    """A field of `Options` that is an option of both command lines, with its default."""
    return field(
        default_factory=lambda: default, metadata={"argument": {"default": default, "help": text, **argument}}
    )


@dataclass(kw_only=True)
class Options:
    """How checkpoints are evaluated: what `eval.suite`, `eval.run_all` and the study share.

    Attributes:
        run: folder of the run.
        data: data root.
        max_new_tokens: upper limit on the length of answers; None for the tasks' own.
    """

    run: Path
    data: Path
    max_new_tokens: int | None = None
    tasks: list[str] = _option(  # noqa: RUF009  a field
        NINE,
        f"default: the nine of Table 4; besides them {', '.join(b.key for b in EXTRA_BENCHMARKS)}",
        nargs="+",
        choices=list(BY_KEY),
        metavar="TASK",
    )
    limit: int | None = _option(
        None, "a trial on the first N rows of each task, written to RUN/limit-N", type=count, metavar="N"
    )
    jobs: int | None = _option(
        None, "processes side by side (default: one a GPU, or 2 without)", type=count, metavar="N"
    )
    batch_size: int = _option(64, "rows a forward pass (default 64)", type=count, metavar="N")
    dtype: str = _option(
        "auto",
        "precision of all models (default auto: bfloat16 on a GPU, float32 without)",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    device: str = _option("auto", "auto (a GPU if there is one), cpu, cuda")
    no_shared_prefix: bool = _option(False, "compute every row alone, as the stock harnesses do", action="store_true")
    trust_remote_code: bool = _option(False, "run model code found in a checkpoint", action="store_true")
    engine: str = _option(
        TRANSFORMERS,
        "answer with vLLM: its program, with options of its own if need be, as in 'PATH/bin/vllm --seed 1'",
        metavar="VLLM",
    )

    @classmethod
    def of(cls, args: argparse.Namespace, **changed: object) -> "Options":
        """From a parsed command line; `changed` replaces some of it."""
        given = {option.name: getattr(args, option.name) for option in fields(cls) if hasattr(args, option.name)}
        return cls(**(given | changed))

    @property
    def folder(self) -> Path:
        """Where results are written: the run's folder; a trial has its own in it."""
        return self.run if self.limit is None else self.run / f"limit-{self.limit}"


def _add_evaluation(parser: argparse._ActionsContainer) -> None:
    for option in fields(Options):
        if option.metadata:
            parser.add_argument(f"--{option.name.replace('_', '-')}", **option.metadata["argument"])


def parse_suite(words: list[str] | None = None) -> argparse.Namespace:
    """The options of `python -m eval.suite`."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.suite",
        description="Evaluate checkpoints on the benchmarks of Table 4. Run again, it continues.",
    )
    parser.add_argument("--run", required=True, type=Path, help="folder of the run, e.g. results/tinyworld")
    parser.add_argument("--data", required=True, type=Path, help="data root with one folder a dataset, ROOT/org/name/")
    parser.add_argument(
        "--models", required=True, nargs="+", metavar="NAME=PATH", help="checkpoints; NAME-seedN names a seed"
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="the method that others of its backbone are compared with (default: the first)",
    )
    parser.add_argument("--backbone", help="its name in the tables (default: from the checkpoint's configuration)")
    parser.add_argument("--seed", type=int, help="seed of the models whose names do not tell")
    parser.add_argument(
        "--max-new-tokens", type=count, help="upper limit on the length of answers (default: the tasks' own)"
    )
    _add_evaluation(parser)
    return parser.parse_args(words)


class _RunAllParser(argparse.ArgumentParser):
    """Ends with one line, like all errors of a user."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}; bash eval/run_all.sh --help lists the options\n")


def _run_all_parser() -> _RunAllParser:
    parser = _RunAllParser(
        prog="bash eval/run_all.sh",
        usage="%(prog)s [options]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="""\
Without options: builds tinyworld, trains the methods baseline, norm and norm-gwc on it, evaluates them and the bare
language model on the nine benchmarks of the paper's Table 4, and prints that table. It takes about 14 minutes on two
CPU cores after the installation (once, about 4 minutes, the only part that needs a network). A trained model is
evaluated while others are trained, one process per core (of two) or GPU. Library output goes to logs/. A failed step
stops those that need it, Ctrl-C everything. After a kill, the same command continues; when finished, it changes
nothing.""",
        epilog="""\
In results/NAME: run.json (settings, versions, hardware, weight hashes), data/, checkpoints/, logs/, answers/,
harness/, scores.json, tables/table4.{md,tex,csv}, figures/table4.svg, diagnostics/, and report.html: one page with
the scores, norms, attention, training curves and settings. Open it in a browser; it needs no
network.""",
    )
    parser.add_argument(
        "--run", metavar="NAME", help="write everything to results/NAME (default: the backbone, or custom)"
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="the method to compare the others with (default: the first)"
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--backbone",
        metavar="NAME",
        help="recipes under configuration/train to train (default: tinyworld). smollm2-135m, a real decoder, "
        "and smollm2-135m-dinov2, a real tower too, make their data; others need --data",
    )
    training.add_argument(
        "--methods", nargs="+", metavar="M", help="from configuration/methods.yaml (default: baseline norm norm-gwc)"
    )
    training.add_argument(
        "--seeds", nargs="+", type=int, metavar="N", help="seeds to train each method with (default: 42)"
    )
    training.add_argument(
        "--training-data", metavar="DATA", help="a folder, --data of train/run.sh; with --finetune, its --data_path"
    )
    tuning = parser.add_argument_group(
        "your own model",
        "Profile a vision-language model of any family, fine-tune it with each method on the same rows, and answer: "
        "are its visual tokens inert, and does aligning their norm help? With --data ROOT, by benchmarks too.",
    )
    recipe = FINETUNE_RECIPE.relative_to(CONFIGURATION.parent)
    tuning.add_argument("--finetune", metavar="MODEL", help="folder or Hub id; needs --training-data FILE")
    tuning.add_argument("--images", type=Path, metavar="DIR", help="folder of the images that rows name, not embed")
    tuning.add_argument("--recipe", type=Path, metavar="FILE", help=f"how it is trained (default: {recipe})")
    tuning.add_argument(
        "--held-out", type=count, metavar="N", help="rows kept from training to compare the loss on (default 100)"
    )
    tuning.add_argument("--preflight", action="store_true", help="only say what memory and time one training takes")
    existing = parser.add_argument_group(
        "existing checkpoints",
        "Evaluate without training, on the real benchmarks: local copies of the datasets, one folder each "
        "(ROOT/org/name/, as `python -m eval.data fetch ROOT` downloads them).",
    )
    existing.add_argument("--models", nargs="+", metavar="NAME=PATH", help="checkpoints to evaluate")
    existing.add_argument("--data", type=Path, metavar="ROOT", help="folder of the datasets")
    _add_evaluation(parser.add_argument_group("evaluation"))
    return parser


def parse_run_all(words: list[str] | None = None) -> argparse.Namespace:
    """The checked options of `eval/run_all.sh`, with their defaults; `run` is a folder. A mistake ends the program."""
    parser = _run_all_parser()
    args = parser.parse_args(words)
    for option in ("images", "recipe", "held_out", "preflight"):
        if getattr(args, option) and not args.finetune:
            parser.error(f"--{option.replace('_', '-')} needs --finetune MODEL")
    for option in ("data", "images"):
        folder = getattr(args, option)
        if folder and not folder.is_dir():
            parser.error(f"--{option} {folder}: no such folder")
    for option in ("methods", "seeds", "tasks"):
        given = getattr(args, option) or []
        if len({*given}) < len(given):
            parser.error(f"--{option}: one is given twice")
    check = _check_models if args.models else _check_finetuning if args.finetune else _check_training
    mistake = check(args)
    args.run = args.run or ("custom" if args.models else "finetune" if args.finetune else args.backbone)
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", args.run):
        mistake = mistake or f"--run {args.run}: a name of letters, digits and . _ - for a folder under results/"
    if mistake is not None:
        parser.error(mistake)
    args.run = Path("results") / args.run
    return args


def _check_models(args: argparse.Namespace) -> str | None:
    """What is wrong with the options of an evaluation of existing checkpoints."""
    if args.data is None:
        return "--models needs --data ROOT, the folder of the datasets"
    if args.methods or args.seeds or args.backbone or args.training_data or args.finetune:
        return "--models evaluates existing checkpoints; --methods, --seeds, --backbone and --training-data train"
    for model in args.models:
        name, _, path = model.partition("=")
        if not name or not path:
            return f"--models {model}: expected NAME=PATH"
        if not (Path(path) / "config.json").is_file():
            return f"--models {name}: no checkpoint (config.json) in {path}"
    return None


def _check_finetuning(args: argparse.Namespace) -> str | None:
    """What is wrong with the options of a fine-tuning run, which get their defaults."""
    if args.backbone:
        return "--finetune trains the model that it names; --backbone trains from backbones"
    if args.training_data is None:
        return "--finetune needs --training-data FILE"
    if args.images is None and args.training_data.endswith((".json", ".jsonl")):
        return f"--training-data {args.training_data} names image files: give their folder, --images DIR"
    args.recipe, args.held_out = args.recipe or FINETUNE_RECIPE, args.held_out or 100
    if not args.recipe.is_file():
        return f"--recipe {args.recipe}: no such file"
    return _check_methods(args, ["baseline", "norm", "norm-stream"])


def _check_training(args: argparse.Namespace) -> str | None:
    """What is wrong with the options of a training run, which get their defaults."""
    args.backbone = args.backbone or "tinyworld"
    known = sorted(file.parent.name for file in RECIPES.glob("*/stage1.yaml"))
    if args.backbone not in known:
        return f"--backbone {args.backbone}: configuration/train has {' '.join(known)}"
    if (RECIPES / args.backbone / "world.yaml").is_file():
        if args.data or args.training_data:
            return f"--data needs --models NAME=PATH or another --backbone; {args.backbone} makes its own data"
    elif args.data is None:
        return f"--backbone {args.backbone} needs --data ROOT, the folder of the benchmarks"
    elif args.training_data and not Path(args.training_data).is_dir():
        return f"--training-data {args.training_data}: no such folder"
    return _check_methods(args, ["baseline", "norm", "norm-gwc"])


def _check_methods(args: argparse.Namespace, default: list[str]) -> str | None:
    args.methods, args.seeds = args.methods or default, args.seeds or [SEED]
    args.baseline = args.baseline or args.methods[0]
    lines = (CONFIGURATION / "methods.yaml").read_text(encoding="utf-8").splitlines()
    known = [line.partition(":")[0] for line in lines if line[:1].isalpha()]  # there may be no yaml to read it with
    for method in args.methods:
        if method not in known:
            return f"unknown method {method}; configuration/methods.yaml has: {' '.join(known)}"
    if args.baseline not in args.methods:
        return f"--baseline {args.baseline}: not among the methods ({' '.join(args.methods)})"
    return None


if __name__ == "__main__":
    parse_run_all()
