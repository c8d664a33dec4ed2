"""`python -m eval.diagnostics COMMAND ...`: the paper's measurements on any HuggingFace vision-language model."""

import argparse

from eval.diagnostics.commands import (
    attention,
    compare,
    dynamics,
    embeddings,
    encoders,
    gradients,
    parameters,
    profile,
    rescale,
    study,
    theory,
    vocabulary,
)
from modeling_aligned_llava.errors import run_main


COMMANDS = {
    "profile": profile,
    "compare": compare,
    "encoders": encoders,
    "embeddings": embeddings,
    "vocabulary": vocabulary,
    "parameters": parameters,
    "dynamics": dynamics,
    "attention": attention,
    "rescale": rescale,
    "gradients": gradients,
    "theory": theory,
    "study": study,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.diagnostics", description=__doc__)
    parsers = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        description = module.__doc__ or ""
        one = parsers.add_parser(name, description=description, help=description.partition(": ")[2].split("\n")[0])
        module.add_arguments(one)
    arguments = parser.parse_args()
    COMMANDS[arguments.command].run(arguments)


if __name__ == "__main__":
    run_main(main)
