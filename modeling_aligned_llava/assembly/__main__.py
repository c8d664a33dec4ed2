"""Build an untrained checkpoint from two backbones, and measure the text norm (Eq. 11)."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.configuration_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.methods import method_fields


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m modeling_aligned_llava.assembly", description=__doc__)
    parser.add_argument(
        "--vision-tower", required=True, help="folder or Hub id of a SigLIP, SigLIP2, CLIP or DINOv2 model"
    )
    parser.add_argument("--language-model", required=True, help="folder or Hub id of a causal language model")
    parser.add_argument("--method", default="norm-gwc", help="a method of configuration/methods.yaml")
    parser.add_argument("--texts", type=Path, help="file of training text, one a line, for methods that measure it")
    parser.add_argument("--chat-template", help="name of a shipped template (default: the tokenizer's own)")
    parser.add_argument("--out", required=True, type=Path, help="checkpoint folder to write")
    parser.add_argument("--seed", type=int, default=42, help="seed of the projector (default: %(default)s)")
    args = parser.parse_args()
    if args.texts is not None and not args.texts.is_file():
        raise UserError(f"--texts: there is no file {args.texts}")
    texts = None if args.texts is None else _lines(args.texts)
    out = assemble(
        args.vision_tower,
        args.language_model,
        args.out,
        fields=method_fields(args.method),
        seed=args.seed,
        chat_template=args.chat_template,
        texts=texts,
    )
    config = AlignedLlavaConfig.from_pretrained(out)
    measured = [f"text norm s = {config.text_norm:.4f}"]
    if config.stream_norm is not None:
        measured.append(f"text enters layer {config.stream_layer} at {config.stream_norm:.4f}")
    print(f"{args.method}: {', '.join(measured)}, written to {out}")  # noqa: T201


def _lines(file: Path) -> Iterator[str]:
    """The lines of a text file that are not empty, read as they are needed.

    Raises:
        UserError: the file is not UTF-8.
    """
    try:
        with file.open(encoding="utf-8") as lines:
            yield from (line.strip() for line in lines if line.strip())
    except UnicodeDecodeError as error:
        raise UserError(f"--texts: {file} is not text in UTF-8 ({error.reason}): convert it") from error


if __name__ == "__main__":
    run_main(main)
