"""Ask up to three models about a picture, side by side, in the browser: `python -m eval.demo --models NAME=PATH ...`.

Without `--models` it shows the arms of results/tinyworld. Nothing leaves the machine.
"""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from eval.data.image_sample import Picture, in_benchmarks, in_folder
from eval.demo.arms import MOST, finished_arms, load_arms
from eval.run.device import resolve_device
from eval.run.named_models import named_models
from modeling_aligned_llava.errors import UserError, run_main


RUN = Path("results/tinyworld")
EXAMPLES = 8


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m eval.demo", description=__doc__.split("\n\n")[0])
    p.add_argument(
        "--models",
        nargs="+",
        metavar="NAME=PATH",
        help=f"one to {MOST} checkpoint folders or Hub ids (default: the arms of {RUN})",
    )
    p.add_argument(
        "--examples", type=Path, help=f"folder of pictures to pick from (default: of {RUN}, if it is there)"
    )
    p.add_argument("--max-new-tokens", type=int, default=64, help="upper limit on the length of answers (default 64)")
    p.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda")
    p.add_argument("--trust-remote-code", action="store_true", help="run model code found in a checkpoint")
    p.add_argument("--port", type=int, help="default: the first free one from 7860")
    p.add_argument("--write-space", type=Path, metavar="FOLDER", help="write a Hugging Face Space instead of serving")
    return p


def read_models(arguments: list[str] | None) -> dict[str, str]:
    """NAME -> folder or Hub id.

    Raises:
        UserError: not NAME=PATH, too many, or none given and none trained.
    """
    models = finished_arms(RUN) if arguments is None else named_models(arguments)
    if not models:
        raise UserError(f"no checkpoints in {RUN}: train them with `bash eval/run_all.sh`, or give --models NAME=PATH")
    if len(models) > MOST:
        raise UserError(f"--models: {len(models)} are given, {MOST} fit beside each other")
    return models


def read_examples(folder: Path | None, own_models: bool) -> list[Picture]:
    """Pictures to pick: of a folder, or tinyworld's benchmarks with their questions for tinyworld's own models."""
    if folder is not None:
        return in_folder(folder, EXAMPLES)
    mirrors = RUN / "data" / "mirrors"
    return [] if own_models or not mirrors.is_dir() else in_benchmarks(mirrors, EXAMPLES)


def main() -> None:
    arguments = parser().parse_args()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
    models = read_models(arguments.models)
    examples = read_examples(arguments.examples, own_models=arguments.models is not None)
    if arguments.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens {arguments.max_new_tokens}: an answer needs at least 1")
    if find_spec("gradio") is None:
        raise UserError("the demo needs gradio: install the extra `demo`")
    if arguments.write_space is not None:
        from eval.demo.space import write_space

        write_space(arguments.write_space, models, examples, arguments.max_new_tokens, arguments.trust_remote_code)
        print(f"the Space is in {arguments.write_space}")  # noqa: T201
        return
    from eval.demo.app import build, serve

    arms = load_arms(models, resolve_device(arguments.device), arguments.trust_remote_code)
    serve(build(arms, examples, arguments.max_new_tokens), arguments.port)


if __name__ == "__main__":
    run_main(main)
