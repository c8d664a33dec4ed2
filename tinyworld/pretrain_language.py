"""Pretrains the decoder: a small Qwen2 that reads a scene listed in words, follows the prompts and knows the facts.

`python -m tinyworld.pretrain_language OUT` takes about 40 minutes on one core. A scene stands where the visual tokens
of an image will stand, one word a token, so that a projector has something to align to.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

from modeling_aligned_llava.chat_templates import chat_template
from tinyworld import layouts
from tinyworld.language import (
    LISTED_WORDS,
    caption,
    exam_for_training,
    fact_turns,
    listing,
    matching,
    scene_questions,
    tale,
    taught_turns,
)
from tinyworld.tokenizer import END, START, train_tokenizer


IGNORED = -100
WIDTH = 64
MIXTURE = {"dialogue": 32, "quiz": 22, "match": 4, "caption": 8, "tale": 11, "exam": 11, "fact": 12}
FIRST_MIXTURE = {"quiz": 37, "match": 15, "caption": 40, "echo": 8}  # dense in answers: reading, looking up, matching
FIRST_SHARE = 0.15  # of all steps


@dataclass
class Row:
    """Token ids and labels of one training text."""

    ids: list[int]
    labels: list[int]


def _piece(tokenizer: PreTrainedTokenizerFast, text: str, learnt: bool) -> Row:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Row(ids, ids if learnt else [IGNORED] * len(ids))


def _listing(tokenizer: PreTrainedTokenizerFast, items: layouts.Items, rng: random.Random) -> Row:
    return _piece(tokenizer, "".join(f" {word}" for word in listing(items, rng)), learnt=False)


def _dialogue(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str]], scene: Row | None) -> list[Row]:
    pieces = []
    for index, (question, answer) in enumerate(turns):
        pieces.append(_piece(tokenizer, f"{START}user\n", learnt=False))
        if index == 0 and scene is not None:
            pieces += [scene, _piece(tokenizer, "\n", learnt=False)]
        pieces.append(_piece(tokenizer, f"{question}{END}\n{START}assistant\n", learnt=False))
        pieces += [_piece(tokenizer, f"{answer}{END}", learnt=True), _piece(tokenizer, "\n", learnt=False)]
    return pieces


def _lines(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> list[Row]:
    """Prompts and answers line by line, without the words around them that a dialogue has."""
    pieces = []
    for prompt, answer in pairs:
        pieces += [_piece(tokenizer, f"\n{prompt}\n", learnt=False), _piece(tokenizer, answer, learnt=True)]
    return pieces


def row(tokenizer: PreTrainedTokenizerFast, rng: random.Random, mixture: dict[str, int]) -> Row:
    """One training text by a mixture: what is asked or listed is context, what is answered or told is learnt."""
    kind = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    items = layouts.draw(rng)
    if kind == "dialogue":
        pieces = _dialogue(tokenizer, taught_turns(items, rng, 3), _listing(tokenizer, items, rng))
    elif kind == "caption":
        pieces = [_listing(tokenizer, items, rng), _piece(tokenizer, f"{caption(items)}{END}", learnt=True)]
    elif kind == "quiz":
        pieces = _lines(tokenizer, [(q.text, q.answer) for q in scene_questions(items, rng, 12)])
        pieces = [_listing(tokenizer, items, rng), *pieces]
    elif kind == "match":
        pieces = _lines(tokenizer, [matching(rng) for _ in range(8)])
    elif kind == "echo":
        words = "".join(f" {word}" for word in rng.choices(LISTED_WORDS, k=24))
        pieces = [_piece(tokenizer, f"{words}\n", learnt=False), _piece(tokenizer, f"{words}{END}", learnt=True)]
    elif kind == "tale":
        pieces = [_piece(tokenizer, f"{tale(rng)}{END}", learnt=True)]
    elif kind == "exam":
        prompt, letter = exam_for_training(rng)
        pieces = [_piece(tokenizer, prompt, learnt=False), _piece(tokenizer, f"{letter}{END}", learnt=True)]
    else:
        pieces = _dialogue(tokenizer, fact_turns(rng, 3), scene=None)
    return Row([i for piece in pieces for i in piece.ids], [i for piece in pieces for i in piece.labels])


def batches(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, tokens: int, first_steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (ids, labels) [B, S] of `tokens` tokens; S is a multiple of WIDTH, so that few shapes are compiled."""
    waiting: dict[int, list[Row]] = {}
    given = 0
    while True:
        new = row(tokenizer, rng, FIRST_MIXTURE if given < first_steps else MIXTURE)
        width = math.ceil(len(new.ids) / WIDTH) * WIDTH
        group = waiting.setdefault(width, [])
        group.append(new)
        if len(group) == tokens // width:
            del waiting[width]
            ids = torch.tensor([r.ids + [0] * (width - len(r.ids)) for r in group])
            labels = torch.tensor([r.labels + [IGNORED] * (width - len(r.labels)) for r in group])
            given += 1
            yield ids, labels


def build(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_theta=10_000.0,
        tie_word_embeddings=False,
        attn_implementation="eager",  # on a CPU, compiled, half the time of the fused kernel's backward
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def loss_of(decoder: Callable, head: torch.nn.Module, ids_BS: Tensor, labels_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy and share of right tokens where there are labels; padding is at the right, out of sight."""
    hidden_BSD = decoder(input_ids=ids_BS, use_cache=False).last_hidden_state
    targets = labels_BS[:, 1:]
    kept = targets != IGNORED
    logits_NV = head(hidden_BSD[:, :-1][kept]).float()
    return torch.nn.functional.cross_entropy(logits_NV, targets[kept]), (
        logits_NV.argmax(-1) == targets[kept]
    ).float().mean()


def shape(step: int, steps: int) -> float:
    """Warm-up over 100 steps, then constant, then linearly to zero over the last third."""
    return min((step + 1) / 100, 1.0, 3 * (steps - step) / steps)


def pretrain(out: Path, steps: int, tokens: int, learning_rate: float, seed: int) -> None:
    set_seed(seed)
    rng = random.Random(f"tinyworld language {seed}")
    tokenizer = train_tokenizer(chat_template("tinyworld"))
    model = build(tokenizer)
    decoder = torch.compile(model.model, dynamic=False)
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=learning_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=learning_rate / 5, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: shape(s, steps)) for o in optimizers]
    stream = batches(tokenizer, rng, tokens, int(FIRST_SHARE * steps))
    seen, start = [], time.monotonic()
    for step in track(range(steps), description="decoder"):
        ids, labels = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, accuracy = loss_of(decoder, model.lm_head, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        seen.append((loss.item(), accuracy.item()))
        if (step + 1) % 100 == 0:
            mean_loss, mean_accuracy = (sum(column) / len(column) for column in zip(*seen, strict=True))
            print(
                f"step {step + 1} loss {mean_loss:.3f} right {mean_accuracy:.3f} {time.monotonic() - start:.0f} s",
                flush=True,
            )
            seen.clear()
        if (step + 1) % 500 == 0 or step + 1 == steps:
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens a batch")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pretrain(arguments.out, arguments.steps, arguments.tokens, arguments.learning_rate, arguments.seed)


if __name__ == "__main__":
    main()
