"""`python -m eval.diagnostics COMMAND ...`: those of `aligned-llava`, and `--data` for images."""

from eval.data.image_sample import in_benchmarks
from modeling_aligned_llava.diagnostics.commands import COMMANDS, run_command
from modeling_aligned_llava.errors import run_main


def main() -> None:
    run_command("python -m eval.diagnostics", COMMANDS, in_benchmarks)


if __name__ == "__main__":
    run_main(main)
