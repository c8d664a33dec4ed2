"""The commands of `aligned-llava`: each parses, calls, shows and writes."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from modeling_aligned_llava.diagnostics.commands import (
    attention,
    compare,
    dynamics,
    embeddings,
    encoders,
    gradients,
    parameters,
    profile,
    theory,
    vocabulary,
)
from modeling_aligned_llava.diagnostics.images import ImageQuestion


COMMANDS = {
    "profile": profile,
    "compare": compare,
    "encoders": encoders,
    "embeddings": embeddings,
    "vocabulary": vocabulary,
    "parameters": parameters,
    "dynamics": dynamics,
    "attention": attention,
    "gradients": gradients,
    "theory": theory,
}


Sample = Callable[[Path, int], list[ImageQuestion]]


def run_command(program: str, commands: dict[str, ModuleType], sample: Sample | None = None) -> None:
    """Run the command that the command line of `program` names.

    Args:
        sample: draws images from the data root of `--data`; None where the benchmarks are not at hand.
    """
    parser = argparse.ArgumentParser(
        prog=program, description="The paper's measurements on any HuggingFace vision-language model."
    )
    parser.set_defaults(sample=sample)
    parsers = parser.add_subparsers(dest="command", required=True)
    for name, module in commands.items():
        description = module.__doc__ or ""
        one = parsers.add_parser(name, description=description, help=description.partition(": ")[2].split("\n")[0])
        module.add_arguments(one)
    arguments = parser.parse_args()
    commands[arguments.command].run(arguments)
