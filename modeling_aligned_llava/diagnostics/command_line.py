"""The command lines `aligned-llava` and `python -m eval.diagnostics`: the commands with their help and their options.

A command is a function here, whose docstring is its help, and the module of its name, which measures. The module is
imported when the command runs and not before, because it imports torch and transformers: `--help` answers at once.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from modeling_aligned_llava.errors import UserError


FOLDER_LIMIT, SAMPLE_LIMIT = 64, 1000  # images of a folder, and of a data root


def profile(parser: ArgumentParser) -> None:
    """`profile MODEL [--images DIR | --data ROOT]`: the norms of Table 2 and the layers of Figs. 3-4, as one JSON
    file.
    """
    _add_model(parser)
    _add_images(parser)
    parser.add_argument("--json", type=Path, help="write the profile to this file; - is standard output")
    parser.add_argument(
        "--fail-if-inert",
        type=float,
        nargs="?",
        const=0.5,
        metavar="SHARE",
        help="exit with status 3 if visual tokens are inert in more than this share of layers (without a value: 0.5)",
    )


def compare(parser: ArgumentParser) -> None:
    """`compare A B`: two profiles side by side; exit status 1 if they differ by more than the tolerance.

    It catches a port or a conversion with the wrong visual scale: profile both on the same images, compare them in CI.
    """
    parser.add_argument("first", type=Path, metavar="A", help="profile of the reference")
    parser.add_argument("second", type=Path, metavar="B", help="profile that should be equal to it")
    parser.add_argument("--tolerance", type=float, default=0.02, help="relative, for norms (default 0.02)")
    parser.add_argument("--cosine-tolerance", type=float, default=0.01, help="absolute, for cosines (default 0.01)")


def encoders(parser: ArgumentParser) -> None:
    """`encoders MODEL ... --images DIR | --data ROOT`: norms of vision encoder outputs (Table 1).

    The choice of output decides the number: SigLIP's last hidden state has passed its final norm, CLIP's has not;
    LLaVA reads the second-to-last layer and drops the class token. All are printed, and of a vision-language model
    what its connector reads; the paper does not name the one it used.
    """
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="vision encoders, CLIP-like or vision-language models"
    )
    _add_loading(parser)
    _add_images(parser)
    parser.add_argument("--out", type=Path, help="folder for encoders.json and the table")


def embeddings(parser: ArgumentParser) -> None:
    """`embeddings MODEL ...`: norms of text embeddings and the largest rows (Tables 1, 6-8)."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="language or vision-language models")
    _add_trust(parser)
    parser.add_argument("--out", type=Path, help="folder for embeddings.json and the tables")


def vocabulary(parser: ArgumentParser) -> None:
    """`vocabulary MODEL --images DIR | --data ROOT`: visual vocabularies such as Ovis's (Table 3), rows and real
    tokens.

    The decoder reads mixtures of rows with probabilities p. Their norm is about |row| / sqrt(N_eff), with N_eff =
    1 / sum p^2, so the norm of the rows alone, which the paper reports, says little about what the decoder reads.
    """
    _add_model(parser)
    _add_images(parser)
    parser.add_argument("--out", type=Path, help="folder for vocabulary.json and the table")


def parameters(parser: ArgumentParser) -> None:
    """`parameters CHECKPOINT ...`: gain and bias of the alignment norm after training, next to Table 5."""
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help="checkpoints with an alignment norm")
    parser.add_argument("--out", type=Path, help="folder for parameters.json and the table")


def dynamics(parser: ArgumentParser) -> None:
    """`dynamics PROFILE ...`: norms, cosines and the inertia attribution by layer (Figs. 2-4); training runs (Fig. 5).

    A PROFILE is the JSON that `profile --json` writes; a training run is the `probe.jsonl` next to its checkpoints.
    """
    parser.add_argument("profiles", nargs="*", metavar="[NAME=]PROFILE", help="profiles to draw side by side")
    parser.add_argument(
        "--training", nargs="+", default=[], metavar="[NAME=]probe.jsonl", help="training runs (Fig. 5)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures and tables")
    parser.add_argument(
        "--paper-convention",
        action="store_true",
        help="take the last point after the final norm, as output_hidden_states does (an artefact)",
    )


def attention(parser: ArgumentParser) -> None:
    """`attention MODEL --images DIR | --data ROOT`: where text attends in the image (App. G), as numbers and maps."""
    _add_model(parser)
    _add_images(parser)
    parser.add_argument("--out", type=Path, help="folder for attention.json, a table and the maps")


def gradients(parser: ArgumentParser) -> None:
    """`gradients MODEL --images DIR | --data ROOT`: gradient norms with no norm, the norm and GWC; does one vanish?"""
    _add_model(parser)
    _add_images(parser)
    parser.add_argument("--out", type=Path, help="folder for gradients.json and a table")


def theory(parser: ArgumentParser) -> None:
    """`theory PROFILE ...`: how much of the rotation of visual and text tokens do their norms predict (Eq. 9)?"""
    parser.add_argument("profiles", nargs="+", type=Path, metavar="PROFILE", help="JSON that `profile --json` wrote")
    parser.add_argument("--json", type=Path, help="write the predictions to this file")


COMMANDS: tuple[Callable[[ArgumentParser], None], ...] = (
    *(profile, compare, encoders, embeddings, vocabulary, parameters, dynamics, attention, gradients, theory),
)


def _add_model(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="checkpoint folder or Hub id, owner/name[@REVISION]")
    parser.add_argument("--connector", help="module between vision and language, if it is not found by its name")
    _add_loading(parser)


def _add_loading(parser: ArgumentParser) -> None:
    _add_trust(parser)
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="precision (default auto: bfloat16 on a GPU; float32 without, in three times the memory)",
    )


def _add_trust(parser: ArgumentParser) -> None:
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoint's repository")


def _add_images(parser: ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--images", type=Path, help="an image, or a folder of images (default: drawn ones)")
    source.add_argument("--data", type=Path, help="data root: a sample of MMBench, POPE and MM-Star, seed 42")
    parser.add_argument(
        "--limit", type=int, help=f"number of images (default {FOLDER_LIMIT}, with --data {SAMPLE_LIMIT}, drawn 12)"
    )


def run_command(program: str, sample: Callable[[Path, int], list[Any]] | None = None) -> None:
    """Run the command that the command line of `program` names.

    Args:
        sample: draws images from the data root of `--data`; None where the benchmarks are not at hand.

    Raises:
        UserError: a package of the extra `diagnostics` is not installed, or as the command.
    """
    parser = ArgumentParser(
        prog=program, description="The paper's measurements on any HuggingFace vision-language model."
    )
    parser.set_defaults(sample=sample)
    parsers = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        text = command.__doc__ or ""
        summary = text.partition(": ")[2].partition("\n\n")[0]
        command(parsers.add_parser(command.__name__, description=text, help=summary))
    arguments = parser.parse_args()
    print(f"{program} {arguments.command}: loading torch and transformers", file=sys.stderr, flush=True)  # noqa: T201
    try:
        module = import_module(f"modeling_aligned_llava.diagnostics.{arguments.command}")
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install 'modeling-aligned-llava[diagnostics]'") from None
    module.run(arguments)
