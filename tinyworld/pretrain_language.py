"""Pretrains the decoder: a small Qwen2 that reads a scene listed in words, follows the prompts and knows the facts.

`python -m tinyworld.pretrain_language OUT` takes about 45 minutes on two cores. A scene stands where the visual tokens
of an image will stand, one word a token, so that a projector has something to align to.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

from modeling_aligned_llava.chat_templates import chat_template
from tinyworld import layouts
from tinyworld.facts import FACTS
from tinyworld.language import (
    LISTED_WORDS,
    OPEN_FAMILIES,
    Choice,
    by_options,
    caption,
    exam_for_training,
    fact_turns,
    listing,
    marked,
    matching,
    scene_questions,
    scene_turns,
    tale,
)
from tinyworld.tokenizer import END, START, train_tokenizer


IGNORED = -100
WIDTH = 64


@dataclass(frozen=True)
class Phase:
    """Steps at one learning rate, or decaying from it to zero, on one mixture {kind of text: weight}."""

    steps: int
    learning_rate: float
    decays: bool
    mixture: dict[str, int]


# Mixed from the start nothing is learnt: first the listing is read, then looked up in many ways, then talked about.
PHASES = (
    Phase(1750, 0.01, False, {"caption": 40, "quiz": 35, "match": 20, "echo": 5}),
    Phase(
        5000,
        0.003,
        False,
        {
            **{"dialogue": 22, "quiz": 14, "options": 14, "marks": 14, "match": 4, "caption": 6},
            **{"tale": 8, "exam": 8, "fact": 6, "fact marks": 6},
        },
    ),
    Phase(
        2500,
        0.003,
        True,
        {
            **{"dialogue": 45, "quiz": 10, "options": 8, "marks": 2, "caption": 6},
            **{"tale": 8, "exam": 11, "fact": 10},
        },
    ),
)


@dataclass
class Row:
    """Token ids and labels of one training text."""

    ids: list[int]
    labels: list[int]


def _piece(tokenizer: PreTrainedTokenizerFast, text: str, learnt: bool) -> Row:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Row(ids, ids if learnt else [IGNORED] * len(ids))


def _listing(tokenizer: PreTrainedTokenizerFast, items: layouts.Items) -> Row:
    return _piece(tokenizer, "".join(f" {word}" for word in listing(items)), learnt=False)


def _dialogue(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str]], scene: Row | None) -> list[Row]:
    pieces = []
    for index, (question, answer) in enumerate(turns):
        pieces.append(_piece(tokenizer, f"{START}user\n", learnt=False))
        if index == 0 and scene is not None:
            pieces += [scene, _piece(tokenizer, "\n", learnt=False)]
        pieces.append(_piece(tokenizer, f"{question}{END}\n{START}assistant\n", learnt=False))
        pieces += [_piece(tokenizer, f"{answer}{END}", learnt=True), _piece(tokenizer, "\n", learnt=False)]
    return pieces


def _pairs(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> list[Row]:
    """Answers right behind their prompts, without the words around them that a dialogue has."""
    return [
        _piece(tokenizer, text, learnt) for pair in pairs for text, learnt in zip(pair, (False, True), strict=True)
    ]


def row(tokenizer: PreTrainedTokenizerFast, rng: random.Random, mixture: dict[str, int]) -> Row:
    """One training text by a mixture: what is asked or listed is context, what is answered or told is learnt."""
    kind = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    items = layouts.draw(rng)
    if kind == "dialogue":
        pieces = _dialogue(tokenizer, scene_turns(items, rng, 3), _listing(tokenizer, items))
    elif kind == "caption":
        pieces = [_listing(tokenizer, items), _piece(tokenizer, f"{caption(items)}{END}", learnt=True)]
    elif kind == "quiz":
        asked = scene_questions(items, rng, 12)
        pieces = [_listing(tokenizer, items), *_pairs(tokenizer, [(f"\n{q.text}", f" {q.answer}") for q in asked])]
    elif kind in ("options", "marks"):
        asked = [q for q in scene_questions(items, rng, 12) if q.family not in OPEN_FAMILIES][:5]
        choices = [Choice.of(q.text, q.answer, q.wrong, rng) for q in asked]
        if kind == "options":
            pairs = [(f"\n{prompt}", letter) for prompt, letter in map(by_options, choices)]
        else:
            pairs = [pair for choice in choices for pair in marked(choice)]
        pieces = [_listing(tokenizer, items), *_pairs(tokenizer, pairs)]
    elif kind == "fact marks":
        choices = [Choice.of(f.fill(f.kind.question), f.value, f.wrong, rng) for f in rng.sample(FACTS, 4)]
        pieces = _pairs(tokenizer, [pair for choice in choices for pair in marked(choice)])
    elif kind == "match":
        lines, found = matching(rng)
        pieces = _pairs(tokenizer, [(f"{lines}\n{found[0][0]}", found[0][1]), *found[1:]])
    elif kind == "echo":
        words = "".join(f" {word}" for word in rng.choices(LISTED_WORDS, k=24))
        pieces = [_piece(tokenizer, f"{words}\n", learnt=False), _piece(tokenizer, f"{words}{END}", learnt=True)]
    elif kind == "tale":
        pieces = [_piece(tokenizer, f"{tale(rng)}{END}", learnt=True)]
    elif kind == "exam":
        pieces = _pairs(tokenizer, exam_for_training(rng))
    else:
        pieces = _dialogue(tokenizer, fact_turns(rng, 3), scene=None)
    return Row([i for piece in pieces for i in piece.ids], [i for piece in pieces for i in piece.labels])


def _padded(rows: list[Row], width: int) -> tuple[Tensor, Tensor]:
    """(ids, labels) [B, S], filled at the right."""
    ids = torch.tensor([r.ids + [0] * (width - len(r.ids)) for r in rows])
    labels = torch.tensor([r.labels + [IGNORED] * (width - len(r.labels)) for r in rows])
    return ids, labels


def batches(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, mixture: dict[str, int], tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (ids, labels) [B, S] of `tokens` tokens; S is a multiple of WIDTH, so that few shapes are compiled."""
    waiting: dict[int, list[Row]] = {}
    while True:
        new = row(tokenizer, rng, mixture)
        width = math.ceil(len(new.ids) / WIDTH) * WIDTH
        group = waiting.setdefault(width, [])
        group.append(new)
        if len(group) == tokens // width:
            del waiting[width]
            yield _padded(group, width)


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


def shape(step: int, phase: Phase) -> float:
    """Warm-up over 100 steps, then constant, or decaying linearly to zero."""
    warm = min((step + 1) / 100, 1.0)
    return min(warm, 1 - step / phase.steps) if phase.decays else warm


@torch.inference_mode()
def report(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, kinds: Iterable[str], rows: int = 16) -> str:
    """For each kind of text the share of learnt tokens that the decoder predicts, on fresh rows."""
    shares = []
    for kind in kinds:
        rng = random.Random(f"tinyworld report {kind}")
        asked = [row(tokenizer, rng, {kind: 1}) for _ in range(rows)]
        ids, labels = _padded(asked, max(len(r.ids) for r in asked))
        _, accuracy = loss_of(model.model, model.lm_head, ids, labels)
        shares.append(f"{kind} {accuracy.item():.2f}")
    return ", ".join(shares)


def train(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, phase: Phase, tokens: int, seed: str) -> None:
    """One phase, in place, with optimizers of its own: Muon for the layers' matrices, AdamW for the rest."""
    decoder = torch.compile(model.model, dynamic=False)
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=phase.learning_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=phase.learning_rate / 5, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: shape(s, phase)) for o in optimizers]
    stream = batches(tokenizer, random.Random(seed), phase.mixture, tokens)
    losses = []
    for step in track(range(phase.steps), description="decoder"):
        ids, labels = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, _ = loss_of(decoder, model.lm_head, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        losses.append(loss.item())
        if (step + 1) % 250 == 0:
            right = report(model, tokenizer, phase.mixture)
            print(f"step {step + 1}: loss {sum(losses) / len(losses):.3f}; right: {right}", flush=True)
            losses.clear()


def pretrain(out: Path, tokens: int, seed: int) -> None:
    """All phases; each leaves its weights in `OUT.phases/`, so that a killed run goes on from the last whole one."""
    tokenizer = train_tokenizer(chat_template("tinyworld"))
    set_seed(seed)
    model = build(tokenizer)
    for number, phase in enumerate(PHASES, 1):
        done = out.with_name(f"{out.name}.phases") / str(number)
        if done.exists():
            model = Qwen2ForCausalLM.from_pretrained(done, attn_implementation="eager")
            continue
        train(model, tokenizer, phase, tokens, f"tinyworld language {seed} {number}")
        unfinished = done.with_suffix(".unfinished")
        model.save_pretrained(unfinished)
        unfinished.rename(done)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a batch")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pretrain(arguments.out, arguments.tokens, arguments.seed)


if __name__ == "__main__":
    main()
