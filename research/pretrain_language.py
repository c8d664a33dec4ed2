"""Pretrains the decoder: a small Qwen2 that reads listings of scenes, follows the prompts and knows the facts.

`python -m research.pretrain_language OUT` takes about half an hour on one core. A listing stands where the
visual tokens of an image will be, one word per token, so that a projector has something to align to. Embeddings have a
norm of about 1, as in the paper's Table 2, and layer 0 less than triples the norm of text. `--lift 20` continues the
shipped decoder into one whose layer 0 multiplies it by 20.
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

from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.inspection.content_text import is_special, special_ids
from modeling_aligned_llava.inspection.forward_pass import watch_layers
from modeling_aligned_llava.loading.chat_templates import chat_template
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from modeling_aligned_llava.norm_alignment import mean_embedding_norm
from research.pretraining_text import (
    LISTED_WORDS,
    by_options,
    exam_for_training,
    listing,
    marked,
    matching,
    tale,
)
from research.tinyworld_tokenizer import END, START, train_tokenizer
from tinyworld import layouts
from tinyworld.facts import FACTS
from tinyworld.language import OPEN_FAMILIES, Choice, caption, fact_turns, scene_questions, scene_turns


IGNORE_INDEX = -100
WIDTH = 64
SHIPPED = Path(__file__).parents[1] / "tinyworld" / "backbones" / "language"
# Muon's steps have one size whatever the gradient. At full size they make what layers add to the residual stream 60
# times as large as the embeddings; smaller steps on the matrices that write to it, and on those before, prevent that.
WRITING = ("v_proj", "o_proj", "up_proj", "down_proj")
WRITING_STEP = 1 / 8
NORM = (0.8, 1.2)  # mean over the vocabulary, as the paper's s
LIFT = (1.0, 3.0)  # norm of text at layer 1 over that at layer 0
LIFT_TOLERANCE = 0.25


@dataclass(frozen=True)
class Phase:
    """Steps at a constant learning rate, or one that decays to zero, on one mixture {kind of text: weight}."""

    steps: int
    learning_rate: float
    decays: bool
    mixture: dict[str, int]


USES = {
    **{"dialogue": 22, "quiz": 14, "options": 14, "marks": 14, "match": 4, "caption": 6},
    **{"tale": 8, "exam": 8, "fact": 6, "fact marks": 6},
}
# Mixed from the start, nothing is learned. So first listings are read, then used in many ways, then talked about.
PHASES = (
    Phase(1750, 0.01, False, {"caption": 40, "quiz": 35, "match": 20, "echo": 5}),
    Phase(3000, 0.003, False, USES),
    Phase(2500, 0.003, False, USES),
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
LIFTED = Phase(1200, 0.003, True, PHASES[-1].mixture)


@dataclass
class LabelledText:
    """Token ids and labels of one training text."""

    ids: list[int]
    labels: list[int]


def _piece(tokenizer: PreTrainedTokenizerFast, text: str, supervised: bool) -> LabelledText:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return LabelledText(ids, ids if supervised else [IGNORE_INDEX] * len(ids))


def _listing(tokenizer: PreTrainedTokenizerFast, items: layouts.Items) -> LabelledText:
    return _piece(tokenizer, "".join(f" {word}" for word in listing(items)), supervised=False)


def _dialogue(
    tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str]], scene: LabelledText | None
) -> list[LabelledText]:
    pieces = []
    for index, (question, answer) in enumerate(turns):
        pieces.append(_piece(tokenizer, f"{START}user\n", supervised=False))
        if index == 0 and scene is not None:
            pieces += [scene, _piece(tokenizer, "\n", supervised=False)]
        pieces.append(_piece(tokenizer, f"{question}{END}\n{START}assistant\n", supervised=False))
        pieces += [_piece(tokenizer, f"{answer}{END}", supervised=True), _piece(tokenizer, "\n", supervised=False)]
    return pieces


def _pairs(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> list[LabelledText]:
    """Answers directly after their prompts, without the words of a dialogue around them."""
    return [
        _piece(tokenizer, text, supervised)
        for pair in pairs
        for text, supervised in zip(pair, (False, True), strict=True)
    ]


def training_text(tokenizer: PreTrainedTokenizerFast, rng: random.Random, mixture: dict[str, int]) -> LabelledText:
    """One training text from a mixture: questions and listings are context, answers and stories are supervised."""
    kind = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    items = layouts.draw(rng)
    if kind == "dialogue":
        pieces = _dialogue(tokenizer, scene_turns(items, rng, 3), _listing(tokenizer, items))
    elif kind == "caption":
        pieces = [_listing(tokenizer, items), _piece(tokenizer, f"{caption(items)}{END}", supervised=True)]
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
        pieces = [
            _piece(tokenizer, f"{words}\n", supervised=False),
            _piece(tokenizer, f"{words}{END}", supervised=True),
        ]
    elif kind == "tale":
        pieces = [_piece(tokenizer, f"{tale(rng)}{END}", supervised=True)]
    elif kind == "exam":
        pieces = _pairs(tokenizer, exam_for_training(rng))
    else:
        pieces = _dialogue(tokenizer, fact_turns(rng, 3), scene=None)
    return LabelledText([i for piece in pieces for i in piece.ids], [i for piece in pieces for i in piece.labels])


def _padded(texts: list[LabelledText], width: int) -> tuple[Tensor, Tensor]:
    """(ids, labels), each [B, S], padded on the right."""
    ids = torch.tensor([r.ids + [0] * (width - len(r.ids)) for r in texts])
    labels = torch.tensor([r.labels + [IGNORE_INDEX] * (width - len(r.labels)) for r in texts])
    return ids, labels


def batches(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, mixture: dict[str, int], tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (ids, labels), each [B, S], of `tokens` tokens; S is a multiple of WIDTH, to compile few shapes."""
    waiting: dict[int, list[LabelledText]] = {}
    while True:
        new = training_text(tokenizer, rng, mixture)
        width = math.ceil(len(new.ids) / WIDTH) * WIDTH
        group = waiting.setdefault(width, [])
        group.append(new)
        if len(group) == tokens // width:
            del waiting[width]
            yield _padded(group, width)


def build(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(  # type: ignore[call-arg]  # its types leave out what its base class takes
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_theta=10_000.0,
        tie_word_embeddings=False,
        attn_implementation="eager",  # compiled on a CPU, its backward takes half the time of the fused kernel's
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=config.hidden_size**-0.5)  # rows of norm 1
    return model


def loss_of(decoder: Callable, head: torch.nn.Module, ids_BS: Tensor, labels_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy and accuracy over the supervised tokens; padding on the right is never attended to."""
    hidden_BSD = decoder(input_ids=ids_BS, use_cache=False).last_hidden_state
    targets = labels_BS[:, 1:]
    kept = targets != IGNORE_INDEX
    logits_NV = head(hidden_BSD[:, :-1][kept]).float()
    return torch.nn.functional.cross_entropy(logits_NV, targets[kept]), (
        logits_NV.argmax(-1) == targets[kept]
    ).float().mean()


def learning_rate_factor(step: int, phase: Phase) -> float:
    """Warm-up over 100 steps, then constant, or decaying linearly to zero."""
    warm = min((step + 1) / 100, 1.0)
    return min(warm, 1 - step / phase.steps) if phase.decays else warm


@torch.inference_mode()
def report(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, kinds: Iterable[str], rows: int = 16) -> str:
    """For each kind of text the share of supervised tokens that the decoder predicts, on fresh texts."""
    shares = []
    for kind in kinds:
        rng = random.Random(f"tinyworld report {kind}")
        asked = [training_text(tokenizer, rng, {kind: 1}) for _ in range(rows)]
        ids, labels = _padded(asked, max(len(r.ids) for r in asked))
        _, accuracy = loss_of(model.model, model.lm_head, ids, labels)
        shares.append(f"{kind} {accuracy.item():.2f}")
    return ", ".join(shares)


@torch.inference_mode()
def text_norms(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: int = 32) -> list[float]:
    """Mean norm of the content of dialogues and captions that enters each layer, [L]."""
    rng = random.Random("tinyworld norms")
    norms: list[list[Tensor]] = [[] for _ in model.model.layers]
    special = special_ids(tokenizer)
    with watch_layers(model.model.layers, lambda layer, before, _: norms[layer].append(before[0].norm(dim=-1)[kept])):
        for _ in range(rows):
            ids = torch.tensor(training_text(tokenizer, rng, {"dialogue": 3, "caption": 1}).ids)
            kept = ~is_special(ids, special)
            model.model(input_ids=ids[None], use_cache=False)
    return [torch.cat(each).mean().item() for each in norms]


def check_norms(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, lift: tuple[float, float]) -> None:
    """Print the norm of embeddings and of text by layer, and the lift of layer 0.

    Raises:
        UserError: one of them is out of range.
    """
    embeddings, norms = mean_embedding_norm(model.model.embed_tokens), text_norms(model, tokenizer)
    found = norms[1] / norms[0]
    by_layer = ", ".join(f"{norm:.2f}" for norm in norms)
    print(f"norm of embeddings {embeddings:.2f}, of text by layer {by_layer}; lift {found:.2f}", flush=True)
    for name, value, (low, high) in (("norm of embeddings", embeddings, NORM), ("lift", found, lift)):
        if not low <= value <= high:
            raise UserError(f"the {name} is {value:.2f}, not within {low:g} and {high:g}: change WRITING_STEP")


def train(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    phase: Phase,
    tokens: int,
    seed: str,
    lifted: float = 1.0,
) -> None:
    """Train one phase, in place, with new optimizers: Muon for the layers' matrices, AdamW for the rest.

    `lifted`: what o_proj and down_proj have been multiplied by; their steps grow with them.
    """
    decoder = torch.compile(model.model, dynamic=False)
    matrices = {name: p for name, p in model.model.layers.named_parameters() if p.ndim == 2}
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices.values())]
    groups = []
    for name, matrix in matrices.items():
        module = name.split(".")[-2]
        scale = lifted if module in ("o_proj", "down_proj") else 1.0
        step = scale * (WRITING_STEP if module in WRITING else 1.0)
        groups.append({"params": [matrix], "lr": phase.learning_rate * step, "weight_decay": 0.01 / scale})
    optimizers = [
        torch.optim.Muon(groups, momentum=0.95),
        torch.optim.AdamW(rest, lr=phase.learning_rate / 5, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: learning_rate_factor(s, phase)) for o in optimizers]
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
    """Train all phases; each saves its weights in `OUT.phases/`, so that a killed run continues after the last one."""
    tokenizer = train_tokenizer(chat_template("tinyworld"))
    set_seed(seed)
    model = build(tokenizer)
    for number, phase in enumerate(PHASES, 1):
        done = out.with_name(f"{out.name}.phases") / str(number)
        if done.exists():
            model = load_strict(Qwen2ForCausalLM, done, attn_implementation="eager")
            continue
        train(model, tokenizer, phase, tokens, f"tinyworld language {seed} {number}")
        unfinished = done.with_suffix(".unfinished")
        model.save_pretrained(unfinished)
        unfinished.rename(done)
    check_norms(model, tokenizer, LIFT)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


@torch.no_grad()
def multiply_writes(model: Qwen2ForCausalLM, factor: float) -> None:
    """Multiply what every layer adds to the residual stream."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)


def pretrain_lifted(out: Path, lift: float, tokens: int, seed: int) -> None:
    """Continue the shipped decoder with larger writes, until it reads as before, with another lift."""
    model = load_strict(Qwen2ForCausalLM, SHIPPED, attn_implementation="eager")
    tokenizer = load_part(SavedTokenizer, SHIPPED)
    factor = 1.0
    for _ in range(20):  # what layer 0 adds hardly depends on its size, so this converges in a few rounds
        norms = text_norms(model, tokenizer)
        change = lift / (norms[1] / norms[0])
        multiply_writes(model, change)
        factor *= change
    train(model, tokenizer, LIFTED, tokens, f"tinyworld language {seed} lift {lift:g}", factor)
    check_norms(model, tokenizer, (lift / (1 + LIFT_TOLERANCE), lift * (1 + LIFT_TOLERANCE)))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lift", type=float, help="continue the shipped decoder to this lift (about 6 minutes)")
    args = parser.parse_args()
    if args.lift is None:
        pretrain(args.out, args.tokens, args.seed)
    else:
        pretrain_lifted(args.out, args.lift, args.tokens, args.seed)


if __name__ == "__main__":
    run_main(main)
