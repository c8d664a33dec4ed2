"""Documents per second against a plain batch-1 `generate` loop, on documents of the shapes of POPE, MM-Star and MMLU.

    python -m benchmarks.gpu.evaluation --shape 3b --out FILE

It needs neither harness: the loop does for each document what lmms-eval's `llava_hf` does at batch size 1, without
reading tasks or scoring. `benchmarks.eval_throughput` compares with the harnesses themselves. Both sides answer the
same random LLaVA's prompts, which a random network never ends by itself.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration

from benchmarks.random_checkpoints import SHAPES, write_checkpoint
from benchmarks.record import environment, write
from modeling_aligned_llava.inference.generator import CONTROL_CHARACTERS, Generator, load_generator
from modeling_aligned_llava.inference.prefix_plan import pack, plan
from modeling_aligned_llava.inference.prompt import user_turn


WORDS = "is there a red cube left of the small blue sphere or behind it in this picture how many objects".split()


@dataclass(frozen=True)
class Form:
    """The shape of a benchmark: groups that share an image or `shared` words, and questions in each."""

    groups: int
    questions: int
    shared: int
    words: int
    answer: int  # tokens
    image: bool = True


# POPE asks 18 questions about an image; MM-Star's questions are longer, one to an image; MMLU has five examples.
FORMS = {
    "pope": Form(12, 18, 0, 8, 16),
    "mmstar": Form(64, 1, 0, 60, 16),
    "mmlu": Form(2, 50, 350, 60, 1, image=False),
}


@dataclass(frozen=True)
class Document:
    """A question, its image, and what it shares that with."""

    group: int
    text: str
    images: list[Image.Image]


def documents(form: Form, fraction: float, seed: int = 0) -> list[Document]:
    """Documents of a form, with noise for images; `fraction` of its groups and questions."""
    rng = random.Random(seed)

    def words(count: int) -> str:
        return " ".join(rng.choices(WORDS, k=count))

    found = []
    for group in range(max(1, round(form.groups * fraction))):
        noise = Image.frombytes("RGB", (40, 30), rng.randbytes(40 * 30 * 3)).resize((640, 480))
        shared = words(form.shared)
        for _ in range(max(1, round(form.questions * fraction))):
            found.append(Document(group, f"{shared} {words(form.words)}?".strip(), [noise] if form.image else []))
    return found


def stock(folder: Path, device: str, dtype: torch.dtype) -> Any:
    """A function that answers documents one by one."""
    processor = AutoProcessor.from_pretrained(folder)
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
    model.to(device)  # type: ignore[arg-type]  # transformers' decorator hides `self`
    pad = processor.tokenizer.eos_token_id

    @torch.inference_mode()
    def answer(asked: Sequence[Document], tokens: int) -> list[str]:
        answers = []
        for document in asked:
            text = user_turn(processor, document.text, len(document.images))
            inputs = processor(text=[text], images=document.images or None, return_tensors="pt").to(device, dtype)
            ids = model.generate(**inputs, do_sample=False, max_new_tokens=tokens, pad_token_id=pad)
            new = ids[:, inputs["input_ids"].shape[1] :]
            answers += processor.batch_decode(new, skip_special_tokens=True)
        return [CONTROL_CHARACTERS.sub("", answer) for answer in answers]  # as ours, to compare

    return answer


def shared_answers(generator: Generator, asked: Sequence[Document], tokens: int, batch_size: int) -> list[str]:
    """Answers in batches with shared prefixes, as the harness adapters compute them."""
    assert generator.tree is not None
    prompts = [generator.render(document.text, len(document.images)) for document in asked]
    rows = generator.tokenize(prompts, [[image.size for image in document.images] for document in asked])
    ranges = [(generator.end_of_images(ids), len(ids) - 1) for ids in rows]
    segments = plan(rows, [document.group for document in asked], ranges, batch_size)
    lengths = [len(ids) + tokens for ids in rows]
    answers: dict[int, str] = {}
    for batch in pack(segments, lengths, batch_size, generator.tree.budget.tokens):
        images = [asked[segment.rows[0]].images for segment in batch]
        members = [row for segment in batch for row in segment.rows]
        answers.update(zip(members, generator.answer_shared(prompts, rows, batch, images, tokens), strict=True))
    return [answers[index] for index in range(len(asked))]


def timed(answer: Any, asked: Sequence[Document], tokens: int) -> tuple[float, list[str]]:
    """Seconds and answers, after one document to warm up."""
    answer(asked[:1], tokens)
    start = time.perf_counter()
    answers = answer(asked, tokens)  # as text, so the device has finished
    return time.perf_counter() - start, answers


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, args.dtype)
    parameters = write_checkpoint(folder, SHAPES[args.shape], dtype)
    asked = {name: documents(form, args.fraction) for name, form in FORMS.items()}
    answered: dict[str, dict[str, tuple[float, list[str]]]] = {}
    peaks = {}
    for who in ("stock", "ours"):  # one model at a time in memory
        if who == "stock":
            answer = stock(folder, device, dtype)
        else:
            generator = load_generator(str(folder), args.dtype, device)

            def answer(some: Sequence[Document], tokens: int, generator: Generator = generator) -> list[str]:
                return shared_answers(generator, some, tokens, args.batch_size)

        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        answered[who] = {name: timed(answer, asked[name], form.answer) for name, form in FORMS.items()}
        peaks[who] = torch.cuda.max_memory_allocated() if device == "cuda" else None
        del answer
    tasks = {}
    for name, rows in asked.items():
        (stock_seconds, stock_answers), (our_seconds, our_answers) = (answered[w][name] for w in ("stock", "ours"))
        tasks[name] = {
            "documents": len(rows),
            "stock_per_s": len(rows) / stock_seconds,
            "ours_per_s": len(rows) / our_seconds,
            "ratio": stock_seconds / our_seconds,
            "same_answers": sum(a == b for a, b in zip(stock_answers, our_answers, strict=True)),
        }
    return {
        "benchmark": "gpu_evaluation",
        "stock": "plain batch-1 generate loop",
        "ratios": {name: task["ratio"] for name, task in tasks.items()},
        "tasks": tasks,
        "peak_memory_bytes": peaks,
        "shape": {"name": args.shape, "parameters": parameters, "visual_tokens": 729, "dtype": args.dtype},
        "batch_size": args.batch_size,
        **environment(),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.evaluation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, default="3b")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--fraction", type=float, default=1.0, help="of groups and of questions in each")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        write(measure(args, Path(folder)), args.out)


if __name__ == "__main__":
    main()
