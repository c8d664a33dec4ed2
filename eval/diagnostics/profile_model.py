# /// script
# requires-python = ">=3.11"
# dependencies = ["modeling-aligned-llava[diagnostics]"]
# ///
"""Are the visual tokens of a model inert? Without a clone: `uv run profile_model.py MODEL`.

`uv` gives it an environment of its own; its options are those of `aligned-llava profile`. Until the package is
published, build it (`pip wheel --no-deps -w dist .`) and write `uv run --find-links dist`.
"""

import sys

from modeling_aligned_llava.diagnostics.command_line import run_command
from modeling_aligned_llava.errors import run_main


if __name__ == "__main__":
    sys.argv.insert(1, "profile")
    run_main(lambda: run_command("aligned-llava"))
