"""Ask up to three models about an image, side by side, in the browser: `python -m eval.demo --models NAME=PATH ...`.

Without `--models` it shows the models of a run, results/tinyworld or `--run`. Nothing leaves the machine.
"""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from eval.data.image_sample import in_benchmarks
from eval.demo.models import MAX_MODELS, load_models
from eval.run.finished_models import find_data_root, finished_models, read_record
from eval.run.named_models import named_models
from modeling_aligned_llava.diagnostics.images import ImageQuestion, in_folder
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.device import resolve_device


RUN = Path("results/tinyworld")
EXAMPLES = 8


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m eval.demo", description=__doc__.split("\n\n")[0])
    p.add_argument(
        "--models",
        nargs="+",
        metavar="NAME=PATH",
        help=f"one to {MAX_MODELS} checkpoint folders or Hub ids (default: the models of --run)",
    )
    p.add_argument("--run", type=Path, default=RUN, help=f"folder of a run, whose models are shown (default: {RUN})")
    p.add_argument("--examples", type=Path, help="folder of images to choose from (default: of --run)")
    p.add_argument("--max-new-tokens", type=int, default=64, help="maximum length of an answer (default 64)")
    p.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda")
    p.add_argument("--trust-remote-code", action="store_true", help="run model code from a checkpoint")
    p.add_argument("--port", type=int, help="default: the first free port from 7860")
    return p


def read_models(arguments: list[str] | None, run: Path) -> dict[str, str]:
    """NAME -> folder or Hub id.

    Raises:
        UserError: not NAME=PATH, too many, or none given and none trained.
    """
    if arguments is None:
        models = {name: str(checkpoint) for name, checkpoint in list(finished_models(run).items())[:MAX_MODELS]}
    else:
        models = named_models(arguments)
    if not models:
        raise UserError(f"no checkpoints in {run}: train them with `bash eval/run_all.sh`, or give --models NAME=PATH")
    if len(models) > MAX_MODELS:
        raise UserError(f"--models: {len(models)} given, at most {MAX_MODELS} fit side by side")
    return models


def read_examples(folder: Path | None, run: Path, own_models: bool) -> list[ImageQuestion]:
    """Images to choose from: of a folder or, for the models of a run, of its benchmarks with their questions."""
    if folder is not None:
        return in_folder(folder, EXAMPLES)
    mirrors = find_data_root(run, read_record(run))
    return [] if own_models or mirrors is None else in_benchmarks(mirrors, EXAMPLES)


def main() -> None:
    arguments = parser().parse_args()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
    models = read_models(arguments.models, arguments.run)
    examples = read_examples(arguments.examples, arguments.run, own_models=arguments.models is not None)
    if arguments.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens {arguments.max_new_tokens}: an answer needs at least 1")
    if find_spec("gradio") is None:
        raise UserError("the demo needs gradio: install the extra `demo`")
    from eval.demo.app import build, serve

    loaded = load_models(models, resolve_device(arguments.device), arguments.trust_remote_code)
    serve(build(loaded, examples, arguments.max_new_tokens), arguments.port)


if __name__ == "__main__":
    run_main(main)
