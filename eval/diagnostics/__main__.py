"""`python -m eval.diagnostics COMMAND ...`: the commands of `aligned-llava`, and `study` for a run."""

from eval.data.image_sample import in_benchmarks
from eval.diagnostics import study
from modeling_aligned_llava.diagnostics.commands import COMMANDS, run_command
from modeling_aligned_llava.errors import run_main


def main() -> None:
    run_command("python -m eval.diagnostics", {**COMMANDS, "study": study}, in_benchmarks)


if __name__ == "__main__":
    run_main(main)
