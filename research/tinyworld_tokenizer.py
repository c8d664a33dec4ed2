"""A byte-level BPE tokenizer trained on tinyworld's text; digits and single capitals are separate tokens."""

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from research.pretraining_text import LISTED_WORDS, exam, tale
from tinyworld import layouts
from tinyworld.facts import FACTS
from tinyworld.language import caption, fact_turns, scene_turns


VOCABULARY = 1024
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def _corpus(rows: int) -> list[str]:
    rng = random.Random("tinyworld tokenizer")
    text = [" ".join(LISTED_WORDS)] * 20
    for _ in range(rows):
        items = layouts.draw(rng)
        text.append("user\nassistant\n" + "\n".join(f"{q}\n{a}" for q, a in scene_turns(items, rng, 4)))
        text += ["\n".join(fact_turns(rng, 1)[0]), caption(items), tale(rng), "".join(exam(rng.choice(FACTS), rng))]
        words = rng.choices(LISTED_WORDS, k=12)
        text.append(f" {' '.join(words)}\n{chr(10).join(words)}")
    return text


def train_tokenizer(chat_template: str, rows: int = 4000) -> PreTrainedTokenizerFast:
    """Train the tokenizer; every word of a listing becomes one token, with the space before it.

    Raises:
        ValueError: a word of a listing is more than one token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[0-9]| ?[A-Z](?![a-z])"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(rows), trainer)
    split = [word for word in LISTED_WORDS if len(tokenizer.encode(f" {word}").ids) != 1]
    if split:
        raise ValueError(f"words of a listing that are not one token: {split}; raise VOCABULARY")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=chat_template, padding_side="right"
    )
