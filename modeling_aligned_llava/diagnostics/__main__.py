"""`aligned-llava COMMAND ...`, a console command of the extra `diagnostics`."""

from modeling_aligned_llava.diagnostics.command_line import run_command
from modeling_aligned_llava.errors import run_main


def main() -> None:
    run_main(lambda: run_command("aligned-llava"))


if __name__ == "__main__":
    main()
