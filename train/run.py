"""Trains both stages of one method: `train/run.sh --backbone tinyworld --method norm`.

Safe to run again: a finished stage is skipped, an unfinished one resumes from its last checkpoint. Only the standard
library is imported: torch takes seconds, and this process only waits.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn


RECIPES = Path("configuration/train")
ENDINGS = (".json", ".jsonl", ".parquet", ".yaml", "")
STAGES = ("stage1", "stage2")


class _Parser(argparse.ArgumentParser):
    """Ends with one line, like all errors of a user."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}; see train/run.sh --help\n")


def parser() -> argparse.ArgumentParser:
    p = _Parser(
        prog="train/run.sh",
        usage="%(prog)s --backbone NAME --method NAME [options] [-- SETTING ...]",
        allow_abbrev=False,
        description="Trains both stages of one method. Run again, it continues.",
        epilog="SETTING ... are further settings for every stage, e.g. `-- --max_steps 10`. Relative paths are "
        'relative to the root of the repository. For several processes: LAUNCH="accelerate launch" train/run.sh ...',
    )
    p.add_argument("--backbone", required=True, help="folder under configuration/train: tinyworld, llama-3.2-3b, ...")
    p.add_argument("--method", required=True, help="a name in configuration/methods.yaml: baseline, norm, ...")
    p.add_argument("--seed", default="42", help="seed of the projector, the data order and training (default 42)")
    p.add_argument(
        "--output-root",
        type=Path,
        metavar="ROOT",
        help="run folder (default results/BACKBONE); checkpoints go to ROOT/checkpoints/METHOD/stage{1,2} for seed "
        "42, and to ROOT/checkpoints/METHOD-seedN/stage{1,2} for another",
    )
    p.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of both stages' data: stage1 and stage2, each a .json, .jsonl, .parquet or .yaml file or a "
        "folder of parquet files, and images/ (default: ROOT/data if there is one, otherwise the recipe's)",
    )
    p.add_argument("--stage", choices=STAGES, help="only this one")
    only = p.add_mutually_exclusive_group()
    only.add_argument(
        "--prepare",
        action="store_true",
        help="only check and tokenize the data, which needs no GPU",
    )
    only.add_argument(
        "--preflight",
        action="store_true",
        help="only check whether the stages can run, what memory and disk they need; options "
        "of `python -m train.preflight` may follow --, such as `-- --processes 8 --device-gb 80`",
    )
    p.add_argument("--vision-tower", metavar="PATH", help="folder or Hub id of another vision tower than the recipe's")
    p.add_argument("--language-model", metavar="PATH", help="folder or Hub id of another language model")
    return p


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The checked options, and the settings after `--`. A mistake ends the program."""
    p = parser()
    end = words.index("--") if "--" in words else len(words)
    args = p.parse_args(words[:end])
    if not (RECIPES / args.backbone).is_dir():
        there = sorted(folder.name for folder in RECIPES.iterdir())
        p.error(f"no backbone {args.backbone}; there are: {' '.join(there)}")
    args.output_root = args.output_root or Path("results") / args.backbone
    if args.data is None and (args.output_root / "data").is_dir():
        args.data = args.output_root / "data"
    args.stages = [args.stage] if args.stage else list(STAGES)
    args.data_of = dict.fromkeys(STAGES)
    for stage in args.stages if args.data else ():
        files = (f"{args.data / stage}{ending}" for ending in ENDINGS if Path(f"{args.data / stage}{ending}").exists())
        args.data_of[stage] = next(files, None)
        if args.data_of[stage] is None:
            p.exit(
                1,
                f"error: {args.data} has no {stage}: a .json, .jsonl, .parquet or .yaml file or a folder of parquet "
                "files\n",
            )
    return args, words[end + 1 :]


def command(args: argparse.Namespace, stage: str, further: list[str]) -> list[str]:
    """How a stage is trained, prepared or checked."""
    recipes = RECIPES / args.backbone
    name = args.method if args.seed == "42" else f"{args.method}-seed{args.seed}"
    checkpoints = args.output_root / "checkpoints" / name
    settings: dict[str, object] = {
        "--config": recipes / f"{stage}.yaml",
        "--method": args.method,
        "--seed": args.seed,
        "--output_dir": checkpoints / stage,
        "--data_path": args.data_of[stage],
        "--image_folder": args.data and args.data / "images",
    }
    towers = {"--vision_tower": args.vision_tower, "--language_model": args.language_model}
    if stage == "stage2":
        settings["--model_name_or_path"] = checkpoints / "stage1"
    if stage == "stage1":
        settings |= towers
    elif (args.prepare or args.preflight) and not (checkpoints / "stage1/config.json").exists():
        settings |= {"--stage1": recipes / "stage1.yaml", **towers}  # a checkpoint of stage 1 would bring its own
    launch = shlex.split(os.environ.get("LAUNCH", ""))
    if args.prepare or args.preflight:
        program = [sys.executable, "-m", *(["train.data", "prepare"] if args.prepare else ["train.preflight"])]
    else:
        program = [*(launch or [sys.executable]), "-m", "train.sft"]
    return [*program, *(str(word) for pair in settings.items() if pair[1] is not None for word in pair), *further]


class Command:
    """A command in a process of its own, and how a signal ends both: it is passed on, and the command may save."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self.number and self.process is not None:
            self.process.terminate()
        self.number = self.number or number

    def run(self, words: list[str]) -> int:
        """The exit status of the command. After a signal, end this program."""
        self.process = subprocess.Popen(words)  # noqa: S603
        if self.number:  # it came before the process was known
            self.process.terminate()
        code = self.process.wait()
        if not self.number:
            return code if code >= 0 else 128 - code  # as a shell says that a signal killed it
        if code <= 0:  # it ended well, or before it could say so
            name = signal.Signals(self.number).name
            sys.stderr.write(f"error: stopped by {name}; the same command starts again or continues\n")
        sys.exit(130)


def main() -> None:
    program, failed = Command(), 0
    args, further = parse(sys.argv[1:])
    for stage in args.stages:
        failed = program.run(command(args, stage, further)) or failed
        if failed and not (args.prepare or args.preflight):  # these look at the next stage too
            break
    sys.exit(failed)


if __name__ == "__main__":
    main()
