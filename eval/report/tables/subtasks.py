"""The parts of each benchmark (POPE's samplings, MMLU's subjects, ...) and POPE's F1 by model, from scores.json.

They have no intervals: parts are plain accuracies that show where a difference comes from, not how certain it is.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd

from eval.data.benchmarks import BY_KEY
from eval.report.tables import writers


def breakdown(models: list[tuple[str, dict[str, Any]]]) -> pd.DataFrame:
    """One line per part, one column per model: points 0-100, or `not run`.

    Args:
        models: (label, benchmark -> row of scores.json), from `table4.table_lines`.
    """
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    for label, cells in models:
        for key, benchmark in BY_KEY.items():
            for name, part in cells.get(key, {}).get("subtasks", {}).items():
                line = parts.setdefault((key, name), {"benchmark": benchmark.title, "part": name, "n": part["n"]})
                line[label] = f"{part['score']:.1f}"
    order = list(BY_KEY)
    lines = [parts[where] for where in sorted(parts, key=lambda where: (order.index(where[0]), where[1]))]
    return pd.DataFrame(lines).fillna("not run")


WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": writers.markdown,
    "tex": writers.latex,
    "csv": writers.comma_separated,
}
