"""`aligned-llava COMMAND ...`, a console command of the extra `diagnostics`."""

from modeling_aligned_llava.diagnostics.command_line import run_command
from modeling_aligned_llava.errors import run_main


def run() -> None:
    run_command("aligned-llava")


def main() -> None:
    run_main(run)


if __name__ == "__main__":
    main()
