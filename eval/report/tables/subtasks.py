"""The parts of each benchmark (POPE's samplings, MMLU's subjects, ...), arm by arm, from scores.json.

Parts are plain accuracies without intervals: they show where a difference comes from, not what it is worth.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd

from eval.data.benchmarks import BY_KEY


def breakdown(arms: list[tuple[str, dict[str, Any]]]) -> pd.DataFrame:
    """One line a part, one column an arm: points 0-100, or `not run`.

    Args:
        arms: (label, benchmark -> row of scores.json), as `tables.arms` gives them.
    """
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    for label, cells in arms:
        for key, benchmark in BY_KEY.items():
            for name, part in cells.get(key, {}).get("subtasks", {}).items():
                line = parts.setdefault((key, name), {"benchmark": benchmark.title, "part": name, "n": part["n"]})
                line[label] = f"{part['score']:.1f}"
    order = list(BY_KEY)
    lines = [parts[where] for where in sorted(parts, key=lambda where: (order.index(where[0]), where[1]))]
    return pd.DataFrame(lines).fillna("not run")


def markdown(frame: pd.DataFrame) -> str:
    rows = [list(frame.columns), ["---"] * frame.shape[1], *frame.astype(str).to_numpy().tolist()]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": markdown,
    "tex": lambda frame: frame.style.hide(axis="index").format(escape="latex").to_latex(hrules=True),
    "csv": lambda frame: frame.to_csv(index=False, lineterminator="\n"),
    "json": lambda frame: frame.to_json(orient="records", indent=1) + "\n",
}
