"""The options of `bash eval/run_all.sh`; `python -m eval.run_options ...` says what is wrong with them.

It imports the standard library alone, because nothing may be installed yet.
"""

import argparse
import re
from pathlib import Path
from typing import NoReturn

from eval.suite.options import SEED, add_options, count


REPOSITORY = Path(__file__).resolve().parents[1]
RECIPES = REPOSITORY / "configuration" / "train"
RECIPE = "configuration/train/finetune/lora.yaml"


class _Parser(argparse.ArgumentParser):
    """Ends with one line, like all errors of a user."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}; bash eval/run_all.sh --help lists the options\n")


def parser() -> argparse.ArgumentParser:
    p = _Parser(
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
    p.add_argument("--run", metavar="NAME", help="write everything to results/NAME (default: the backbone, or custom)")
    p.add_argument("--baseline", metavar="NAME", help="the method to compare the others with (default: the first)")
    training = p.add_argument_group("training")
    training.add_argument(
        "--backbone",
        metavar="NAME",
        help="recipes under configuration/train to train (default: tinyworld). smollm2-135m, a real decoder, "
        "makes its data too; others need --data",
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
    tuning = p.add_argument_group(
        "your own model",
        "Profile a vision-language model of any family, fine-tune it with each method on the same rows, and answer: "
        "are its visual tokens inert, and does aligning their norm help? With --data ROOT, by benchmarks too.",
    )
    tuning.add_argument("--finetune", metavar="MODEL", help="folder or Hub id; needs --training-data FILE")
    tuning.add_argument("--images", type=Path, metavar="DIR", help="folder of the images that the rows name")
    tuning.add_argument("--recipe", type=Path, metavar="FILE", help=f"how it is trained (default: {RECIPE})")
    tuning.add_argument(
        "--held-out", type=count, metavar="N", help="rows kept from training to compare the loss on (default 100)"
    )
    tuning.add_argument("--preflight", action="store_true", help="only say what memory and time one training takes")
    existing = p.add_argument_group(
        "existing checkpoints",
        "Evaluate without training, on the real benchmarks: local copies of the datasets, one folder each "
        "(ROOT/org/name/, as `python -m eval.data fetch ROOT` downloads them).",
    )
    existing.add_argument("--models", nargs="+", metavar="NAME=PATH", help="checkpoints to evaluate")
    existing.add_argument("--data", type=Path, metavar="ROOT", help="folder of the datasets")
    add_options(p.add_argument_group("evaluation"))
    return p


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The checked options, with their defaults; `run` is a folder. A mistake ends the program."""
    p = parser()
    args = p.parse_args(words)
    own = {
        "--images": args.images,
        "--recipe": args.recipe,
        "--held-out": args.held_out,
        "--preflight": args.preflight,
    }
    for option in (option for option, given in own.items() if given and not args.finetune):
        p.error(f"{option} needs --finetune MODEL")
    wrong = _of_models(args) if args.models else _of_finetuning(args) if args.finetune else _of_training(args)
    args.run = args.run or ("custom" if args.models else "finetune" if args.finetune else args.backbone)
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", args.run):
        wrong = wrong or f"--run {args.run}: a name of letters, digits and . _ - for a folder under results/"
    if wrong is not None:
        p.error(wrong)
    args.run = Path("results") / args.run
    return args


def _of_models(args: argparse.Namespace) -> str | None:
    """What is wrong with the options of an evaluation of existing checkpoints."""
    if args.data is None:
        return "--models needs --data ROOT, the folder of the datasets"
    if args.methods or args.seeds or args.backbone or args.training_data or args.finetune:
        return "--models evaluates existing checkpoints; --methods, --seeds, --backbone and --training-data train"
    if not args.data.is_dir():
        return f"--data {args.data}: no such folder"
    for model in args.models:
        name, _, path = model.partition("=")
        if not name or not path:
            return f"--models {model}: expected NAME=PATH"
        if not (Path(path) / "config.json").is_file():
            return f"--models {name}: no checkpoint (config.json) in {path}"
    return None


def _of_finetuning(args: argparse.Namespace) -> str | None:
    """What is wrong with the options of a fine-tuning run, which get their defaults."""
    if args.backbone:
        return "--finetune trains the model that it names; --backbone trains from backbones"
    if args.training_data is None or args.images is None:
        return "--finetune needs --training-data FILE and --images DIR"
    args.recipe, args.held_out = args.recipe or REPOSITORY / RECIPE, args.held_out or 100
    if not args.images.is_dir():
        return f"--images {args.images}: no such folder"
    if not args.recipe.is_file():
        return f"--recipe {args.recipe}: no such file"
    if args.data and not args.data.is_dir():
        return f"--data {args.data}: no such folder"
    args.methods = args.methods or ["baseline", "norm", "norm-stream"]
    args.seeds = args.seeds or [SEED]
    args.baseline = args.baseline or args.methods[0]
    return _of_methods(args)


def _of_training(args: argparse.Namespace) -> str | None:
    """What is wrong with the options of a training run, which get their defaults."""
    args.backbone = args.backbone or "tinyworld"
    args.methods = args.methods or ["baseline", "norm", "norm-gwc"]
    args.seeds = args.seeds or [SEED]
    args.baseline = args.baseline or args.methods[0]
    there = sorted(file.parent.name for file in RECIPES.glob("*/stage1.yaml"))
    if args.backbone not in there:
        return f"--backbone {args.backbone}: configuration/train has {' '.join(there)}"
    if (RECIPES / args.backbone / "world.yaml").is_file():
        if args.data or args.training_data:
            return f"--data needs --models NAME=PATH or another --backbone; {args.backbone} makes its own data"
    elif args.data is None or not args.data.is_dir():
        return f"--backbone {args.backbone} needs --data ROOT, the folder of the benchmarks"
    elif args.training_data and not Path(args.training_data).is_dir():
        return f"--training-data {args.training_data}: no such folder"
    return _of_methods(args)


def _of_methods(args: argparse.Namespace) -> str | None:
    listed = (REPOSITORY / "configuration" / "methods.yaml").read_text(encoding="utf-8")
    known = re.findall(r"^([a-z][a-z0-9-]*):", listed, re.MULTILINE)  # there may be no yaml yet
    for method in args.methods:
        if method not in known:
            return f"unknown method {method}; configuration/methods.yaml has: {' '.join(known)}"
    if args.baseline not in args.methods:
        return f"--baseline {args.baseline}: not among the methods ({' '.join(args.methods)})"
    return None


if __name__ == "__main__":
    parse()
