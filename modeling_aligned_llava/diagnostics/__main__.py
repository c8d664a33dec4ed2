"""`aligned-llava COMMAND ...`, a console command of the extra `diagnostics`."""

from modeling_aligned_llava.errors import UserError, run_main


def run() -> None:
    try:
        from modeling_aligned_llava.diagnostics.commands import COMMANDS, run_command
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install 'modeling-aligned-llava[diagnostics]'") from None
    run_command("aligned-llava", COMMANDS)


def main() -> None:
    run_main(run)


if __name__ == "__main__":
    main()
