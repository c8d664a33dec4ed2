"""The nouns of the pictures, their kinds and frequencies, and what people know about them, from `nouns.yaml`."""

import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import yaml


_FILE = yaml.safe_load((Path(__file__).parent / "nouns.yaml").read_text(encoding="utf-8"))
KINDS: dict[str, tuple[str, ...]] = {kind: tuple(nouns) for kind, nouns in _FILE["kinds"].items()}
NOUNS: tuple[str, ...] = (*(noun for nouns in KINDS.values() for noun in nouns), *_FILE["other"])
KIND = {noun: kind for kind, nouns in KINDS.items() for noun in nouns}
PLURAL, MASS = frozenset(_FILE["plural"]), frozenset(_FILE["mass"])
EMOJI: dict[str, str] = _FILE["emoji"]
# As in photographs and their captions, a few things are common and most are rare: Zipf's law, in a fixed random order.
FREQUENCY = {
    noun: 1 / (rank + 3) for rank, noun in enumerate(random.Random("pictures frequencies").sample(NOUNS, len(NOUNS)))
}
KIND_FREQUENCY = {kind: sum(FREQUENCY[noun] for noun in nouns) for kind, nouns in KINDS.items()}
HELD_OUT_KINDS = frozenset(_FILE["held_out"]["kinds"])
HELD_OUT_KNOWLEDGE = frozenset(_FILE["held_out"]["knowledge"])


@dataclass(frozen=True)
class Knowledge:
    """Something that is true of some nouns and false of others; of those in neither set nothing is asked."""

    name: str
    which: str
    ask: str
    say: str
    true_of: frozenset[str]
    false_of: frozenset[str]


def _nouns(entries: list[str]) -> frozenset[str]:
    return frozenset(
        noun for entry in entries for noun in (PLURAL if entry == "plural" else KINDS.get(entry, (entry,)))
    )


def _knowledge(name: str, entry: dict) -> Knowledge:
    # What is named by itself weighs more than its kind: penguins are birds that cannot fly.
    true_of = _nouns(entry["true_of"])
    unclear = _nouns(entry["unclear"]) - true_of
    return Knowledge(name, entry["which"], entry["ask"], entry["say"], true_of, frozenset(NOUNS) - true_of - unclear)


KNOWLEDGE = {name: _knowledge(name, entry) for name, entry in _FILE["knowledge"].items()}


def _draw(rng: random.Random, count: int, frequency: dict[str, float]) -> list[str]:
    left = dict(frequency)
    found: list[str] = []
    while left and len(found) < count:
        (name,) = rng.choices(list(left), list(left.values()))
        found.append(name)
        del left[name]
    return found


def draw_nouns(rng: random.Random, count: int, among: Collection[str] = NOUNS) -> list[str]:
    """`count` different nouns by their frequency; fewer, if there are not so many."""
    return _draw(rng, count, {noun: FREQUENCY[noun] for noun in sorted(among)})


def draw_kinds(rng: random.Random, count: int, among: Collection[str] = tuple(KINDS)) -> list[str]:
    """`count` different kinds by the frequency of their nouns."""
    return _draw(rng, count, {kind: KIND_FREQUENCY[kind] for kind in sorted(among)})


def with_article(noun: str) -> str:
    """`an owl`, `grapes`, `bread`."""
    if noun in PLURAL | MASS:
        return noun
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def is_or_are(noun: str) -> str:
    return "are" if noun in PLURAL else "is"


def plural(kind: str) -> str:
    """`birds`, `dishes`, `pieces of clothing`."""
    first, *rest = kind.split(" of ")
    ending = "es" if first.endswith(("s", "sh", "x")) else "s"
    return " of ".join([first + ending, *rest])
