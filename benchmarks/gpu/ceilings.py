"""What this machine reaches: matrix products and copies, large ones and those of the decoders' layers.

python -m benchmarks.gpu.ceilings --out FILE
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.machine import copy_terabytes, matmul_tflops, sheet_here
from benchmarks.record import environment, write


# Tokens, width and inner width of the gated product: a micro-batch of four rows of 1024 tokens.
PRODUCTS = {"llama-3.2-3b": (4096, 3072, 8192), "qwen2.5-7b": (4096, 3584, 18_944)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.ceilings", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--large-only", action="store_true", help="leave out the products of the layers")
    args = parser.parse_args(argv)
    products = {} if args.large_only else PRODUCTS
    found: dict[str, Any] = {
        "matmul_tflops": {"bfloat16": matmul_tflops(True), "float32": matmul_tflops(False)},
        "layer_tflops": {name: matmul_tflops(True, sizes) for name, sizes in products.items()},
        "copy_terabytes": copy_terabytes(),
    }
    sheet = sheet_here()
    share = sheet and {
        "matmul": found["matmul_tflops"]["bfloat16"] * 1e12 / sheet.matmul,
        "copy": found["copy_terabytes"] * 1e12 / sheet.bandwidth,
    }
    write({"benchmark": "ceilings", **found, "share_of_the_data_sheet": share, **environment()}, args.out)


if __name__ == "__main__":
    main()
