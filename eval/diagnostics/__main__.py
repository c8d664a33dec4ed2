"""`python -m eval.diagnostics COMMAND ...`: the paper's measurements for any HuggingFace vision-language model."""

import argparse

from eval.diagnostics.commands import attention as attention_command
from eval.diagnostics.commands import compare as compare_command
from eval.diagnostics.commands import dynamics as dynamics_command
from eval.diagnostics.commands import embeddings as embeddings_command
from eval.diagnostics.commands import encoders as encoders_command
from eval.diagnostics.commands import gradients as gradients_command
from eval.diagnostics.commands import parameters as parameters_command
from eval.diagnostics.commands import profile as profile_command
from eval.diagnostics.commands import rescale as rescale_command
from eval.diagnostics.commands import study as study_command
from eval.diagnostics.commands import theory as theory_command
from eval.diagnostics.commands import vocabulary as vocabulary_command
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
