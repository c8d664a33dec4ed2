"""Do the 95 % intervals of eval/score cover the truth in 95 % of repetitions? Simulated answers, known truths.

python -m research.interval_coverage --out benchmarks/results/interval_coverage.json

A checkpoint answers an item rightly if level + stratum + image + item + method's own view of the item + seed + noise
of this seed at this item is positive, all but level and stratum normal. The truth is the expected score over new items
and, with several seeds, over new seeds. With one seed it is that of this checkpoint, because its interval covers items
alone. The methods differ by 3 points. The spread of seeds is that of their true scores, in points.

Each way to combine seeds that `eval/score/seeds.py` mentions is simulated beside the one it takes. These columns are
alone. Then tables: nine columns of a baseline and two methods, whose variances between trainings differ by a factor of
four, with each column alone and with variances that columns and methods share.
"""

import argparse
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm, t

from benchmarks.record import environment, write
from eval.score import seeds, statistics
from eval.score.items import Items
from eval.score.seeds import NO_PRIOR, SeedMean


SEEDS = (1, 2, 3, 5, 10)
SPREADS = (0.5, 1.0, 2.0)  # standard deviation of a method's true score over seeds, points
REPETITIONS = 2000
RESAMPLES = 1000  # of each interval of one seed
STRATA, IMAGE, ITEM, VIEW, NOISE = 0.4, 0.7, 1.0, 0.5, 0.6  # standard deviations; those of strata are fixed
GAIN = 3.0  # points
HIERARCHICAL = "plain, 5,000 items"  # the shape on which the bootstrap over seeds and items is tried, with three seeds
DRAWS = 400  # of that bootstrap

TABLE_SEEDS = (2, 3, 5)
TABLE_REPETITIONS = 1000
TABLE_METHODS = 3  # a baseline and two methods
TOGETHER = (0.0, 0.3)  # correlation between columns of what a training does to them

Interval = tuple[float, float]


@dataclass(frozen=True)
class Shape:
    """A benchmark: strata x images a stratum x questions an image, and the accuracy of the baseline."""

    strata: int
    images: int
    questions: int
    macro: bool
    accuracy: float = 0.6

    def items(self) -> Items:
        made = Items()
        for stratum in range(self.strata):
            for image in range(self.images):
                for question in range(self.questions):
                    made.add(f"{stratum}/{image}/{question}", 0, str(stratum), f"{stratum}/{image}")
        return made


SHAPES = {
    "plain, 200 items": Shape(1, 200, 1, False),
    "plain, 1,000 items": Shape(1, 1000, 1, False),
    HIERARCHICAL: Shape(1, 5000, 1, False, 0.7),
    "500 images with 6 questions, accuracy 0.88 (POPE)": Shape(1, 500, 6, False, 0.88),
    "60 images with 6 questions": Shape(1, 60, 6, False),
    "macro mean of 18 categories with 10 items": Shape(18, 10, 1, True, 0.45),
    "57 subjects with 4 items": Shape(57, 4, 1, False),
}
# Of a table; seeds spread by one to two points, in no order of the numbers of items.
COLUMNS = SHAPES | {f"plain, {items:,} items": Shape(1, items, 1, False) for items in (400, 2000)}
TABLE_SPREADS = np.geomspace(1, 2, 9)[[4, 0, 8, 2, 6, 1, 7, 3, 5]]


@dataclass
class World:
    """Methods on one benchmark: their true scores, and answers of new seeds to new items."""

    shape: Shape
    spread: float
    methods: int = 2

    def __post_init__(self) -> None:
        shape = self.shape
        self.asked = shape.items()
        self.design = statistics.Design.of(self.asked, shape.macro)
        image = IMAGE if shape.questions > 1 else 0.0
        self.image = image
        self.scale = float(np.sqrt(image**2 + ITEM**2 + VIEW**2 + NOISE**2))  # of an item, for one checkpoint
        self.strata = STRATA * np.linspace(-1, 1, shape.strata) if shape.strata > 1 else np.zeros(1)
        slope = 100 * norm.pdf(norm.ppf(shape.accuracy)) / self.scale  # points per unit of level
        self.levels = self.scale * norm.ppf(shape.accuracy) + np.array([0.0] + [GAIN / slope] * (self.methods - 1))
        self.seed = self.spread / slope

    def truth(self, levels: np.ndarray, seeds_too: bool) -> np.ndarray:
        """Expected score in points at each level, over items, and over seeds if they vary."""
        scale = np.hypot(self.scale, self.seed) if seeds_too else self.scale
        return 100 * norm.cdf((levels[..., None] + self.strata) / scale).mean(axis=-1)

    def draw(
        self, random: np.random.Generator, count: int, common: np.ndarray | float = 0.0, together: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answers (method, items, seeds) as 1.0 and 0.0, and levels of the checkpoints (method, seeds).

        Args:
            common: what each training does to all columns, standard normal, (method, seeds).
            together: its share of the variance between trainings.
        """
        design, items = self.design, len(self.design.cluster)
        level = (self.strata[design.stratum] + self.image * random.standard_normal(len(design.size)))[design.cluster]
        level = level + ITEM * random.standard_normal(items)
        views = level + VIEW * random.standard_normal((self.methods, items))
        of_seeds = np.sqrt(1 - together) * random.standard_normal((self.methods, count)) + np.sqrt(together) * common
        checkpoints = self.levels[:, None] + self.seed * of_seeds
        noise = NOISE * random.standard_normal((self.methods, items, count), dtype=np.float32)
        return (views[:, :, None] + checkpoints[:, None, :] + noise > 0).astype(float), checkpoints

    def scores(self, outcome: np.ndarray) -> np.ndarray:
        """Points of each column, (items, columns) -> (columns,). The strata are of equal size."""
        return 100 * outcome.mean(axis=0)


def of_one_seed(world: World, random: np.random.Generator, label: str) -> Iterator[tuple[str, str, Interval, float]]:
    """(outcome, way, interval, truth) of one repetition with a single checkpoint per method."""
    answers, levels = world.draw(random, 1)
    asked, truth = world.asked, world.truth(levels[:, 0], seeds_too=False)
    baseline, method = (Items(asked.id, each[:, 0].tolist(), asked.stratum, asked.cluster) for each in answers)
    own = statistics.score(method, world.shape.macro, label)
    gap = statistics.difference(baseline, method, world.shape.macro, label)
    yield "score", "ours", own.ci95, truth[1]
    yield "difference", "ours", gap.ci95, truth[1] - truth[0]


def of_several(
    world: World, random: np.random.Generator, count: int, hierarchical: bool
) -> Iterator[tuple[str, str, Interval, float]]:
    """(outcome, way, interval, truth) of one repetition with `count` seeds of each method."""
    answers, _ = world.draw(random, count)
    truth = world.truth(world.levels, seeds_too=True)
    for name, outcome, true in (
        ("score", answers[1], truth[1]),
        ("difference", answers[1] - answers[0], truth[1] - truth[0]),
    ):
        mean = seeds.of_outcomes(world.design, outcome, world.scores(outcome), name == "difference")
        yield name, "ours", mean.ci95 or (-100.0, 100.0), true  # none can be given: anything is possible
        for way, interval in WAYS.items():
            yield name, way, interval(mean), true
        if hierarchical:
            yield name, "hierarchical bootstrap", bootstrap(outcome, random), true


def _student(mean: SeedMean, freedom: float, standard_error: float) -> Interval:
    half = t.ppf(1 - statistics.TAIL, freedom) * standard_error
    return mean.value - half, mean.value + half


def _satterthwaite(mean: SeedMean) -> Interval:
    freedom = (len(mean.values) - 1) * (mean.standard_error**2 / max(mean.of_seeds, statistics.NO_SPREAD)) ** 2
    return _student(mean, freedom, mean.standard_error)


WAYS: dict[str, Callable[[SeedMean], Interval]] = {
    "items only": lambda mean: _student(mean, np.inf, mean.items**0.5),
    "normal": lambda mean: _student(mean, np.inf, mean.standard_error),
    "Satterthwaite": _satterthwaite,
}


def bootstrap(outcome: np.ndarray, random: np.random.Generator) -> Interval:
    """Percentiles of the mean with seeds and items both drawn with replacement, (items, seeds)."""
    items, count = outcome.shape
    kinds, often = np.unique(outcome, axis=0, return_counts=True)
    drawn = random.multinomial(items, often / items, size=DRAWS) @ kinds / items
    chosen = random.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
    low, high = np.percentile(100 * (drawn * chosen).sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def coverage(name: str, shape: Shape, spread: float, count: int, repetitions: int) -> dict[str, dict[str, float]]:
    """Outcome ("score" or "difference") -> way -> share of repetitions whose interval has the truth in it."""
    world = World(shape, spread)
    random = np.random.default_rng(zlib.crc32(f"{name} {spread} {count}".encode()))
    covered: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for repetition in range(repetitions):
        found = (
            of_one_seed(world, random, f"{name} {repetition}")
            if count == 1
            else of_several(world, random, count, name == HIERARCHICAL and count == 3)
        )
        for outcome, way, (low, high), truth in found:
            covered[outcome][way] += bool(low <= truth <= high)
    return {outcome: {way: n / repetitions for way, n in ways.items()} for outcome, ways in covered.items()}


def of_table(worlds: list[World], random: np.random.Generator, count: int, together: float) -> Iterator[tuple]:
    """(outcome, way, column, mean over seeds, truth) of one repetition; the last column is the mean of the others."""
    common = random.standard_normal((TABLE_METHODS, count))
    answers = [world.draw(random, count, common, together)[0] for world in worlds]
    truths = np.array([world.truth(world.levels, seeds_too=True) for world in worlds]).T
    for outcome, first in (("score", 0), ("difference", 1)):
        lines, true = [], []
        for method in range(first, TABLE_METHODS):
            gains = [of_world[method] - of_world[0] * first for of_world in answers]
            columns = zip(worlds, gains, strict=True)
            lines.append([seeds.of_outcomes(w.design, gain, w.scores(gain), first == 1) for w, gain in columns])
            true.append(truths[method] - truths[0] * first)
        in_common = seeds.prior([cell for line in lines for cell in line])
        for way, prior in (("alone", NO_PRIOR), ("shared", in_common)):
            for line, of_line in zip(lines, true, strict=True):
                cells = [replace(cell, prior=prior) for cell in line]
                mean = seeds.mean(cells)
                cells.append(mean if way == "shared" else replace(mean, prior=NO_PRIOR))
                for column, cell, truth in zip([*COLUMNS, "mean"], cells, [*of_line, of_line.mean()], strict=True):
                    yield outcome, way, column, cell, truth


def table_coverage(count: int, together: float, repetitions: int) -> list[dict[str, Any]]:
    """For outcomes and ways: coverage of each column and of their mean, and half-widths of those intervals."""
    shapes = zip(COLUMNS.values(), TABLE_SPREADS, strict=True)
    worlds = [World(shape, float(spread), TABLE_METHODS) for shape, spread in shapes]
    random = np.random.default_rng(zlib.crc32(f"table {together} {count}".encode()))
    covered: dict[tuple[str, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    halves: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for _ in range(repetitions):
        for outcome, way, column, mean, truth in of_table(worlds, random, count, together):
            low, high = mean.ci95 or (-100.0, 100.0)
            covered[outcome, way][column].append(bool(low <= truth <= high))
            halves[outcome, way, column == "mean"].append(mean.half_width or np.nan)
    rows = []
    for (outcome, way), columns in covered.items():
        shares = {column: round(float(np.mean(hits)), 4) for column, hits in columns.items()}
        of_mean = {"coverage": shares.pop("mean"), "half_width": widths(halves[outcome, way, True])}
        setting = {"seeds": count, "together": together, "outcome": outcome, "way": way}
        of_columns = {"coverage": summarized(list(shares.values())), "half_width": widths(halves[outcome, way, False])}
        rows.append(setting | of_columns | {"columns": shares, "mean": of_mean})
    return rows


def widths(halves: list[float]) -> dict[str, float]:
    """Mean and percentiles of half-widths in points, without intervals that could not be given."""
    low, high = np.nanpercentile(halves, [5, 95])
    return {"mean": round(float(np.nanmean(halves)), 2), "5 %": round(float(low), 2), "95 %": round(float(high), 2)}


def summarized(shares: list[float]) -> dict[str, float]:
    return {"lowest": min(shares), "mean": round(float(np.mean(shares)), 4), "highest": max(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    statistics.RESAMPLES = RESAMPLES
    rows: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        for count in SEEDS:
            for spread in SPREADS if count > 1 else SPREADS[:1]:  # of one seed the interval leaves the spread out
                found = coverage(name, shape, spread, count, args.repetitions)
                for outcome, ways in found.items():
                    own = {"benchmark": name, "seeds": count, "outcome": outcome}
                    rows.append(own | ({"spread": spread} if count > 1 else {}) | {"coverage": ways})
                    print(rows[-1], file=sys.stderr, flush=True)  # noqa: T201
    summary = {
        count: summarized([row["coverage"]["ours"] for row in rows if row["seeds"] == count]) for count in SEEDS
    }
    repetitions = min(args.repetitions, TABLE_REPETITIONS)
    tables = [row for c in TABLE_SEEDS for together in TOGETHER for row in table_coverage(c, together, repetitions)]
    settings = {"nominal": 0.95, "repetitions": args.repetitions, "resamples": RESAMPLES, "gain": GAIN}
    write(
        {
            "benchmark": "interval_coverage",
            **environment(),
            **settings,
            "by_seeds": summary,
            "rows": rows,
            "table_repetitions": repetitions,
            "tables": tables,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
