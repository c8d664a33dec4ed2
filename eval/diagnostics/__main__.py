"""`python -m eval.diagnostics COMMAND ...`: the paper's measurements for any HuggingFace vision-language model."""

import argparse

from eval.diagnostics import (
    attention_command,
    compare_command,
    dynamics_command,
    embeddings_command,
    encoders_command,
    gradients_command,
    parameters_command,
    profile_command,
    rescale_command,
    study_command,
    theory_command,
    vocabulary_command,
)
from modeling_aligned_llava.errors import run_main


COMMANDS = {
    "profile": profile_command,
    "compare": compare_command,
    "encoders": encoders_command,
    "embeddings": embeddings_command,
    "vocabulary": vocabulary_command,
    "parameters": parameters_command,
    "dynamics": dynamics_command,
    "attention": attention_command,
    "rescale": rescale_command,
    "gradients": gradients_command,
    "theory": theory_command,
    "study": study_command,
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
