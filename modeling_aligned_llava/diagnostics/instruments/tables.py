"""Tables of text cells, printed and written as Markdown; the formats of their numbers; the paper's values."""

import re
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from modeling_aligned_llava.loading.files import write_text


PAPER: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "paper_values.yaml").read_text(encoding="utf-8"))


def show_table(title: str, heads: list[str], rows: list[list[str]], out: Path | None = None) -> None:
    """Print a table; with `out`, write it as Markdown too."""
    table = Table(title=title)
    for position, head in enumerate(heads):
        table.add_column(head, justify="right" if position else "left")
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console = Console()
    console.width = console.width if console.is_terminal else 120
    console.print(table)
    if out is not None:
        write_text(out, f"## {title}\n\n{markdown_table(heads, rows)}\n")


def markdown_table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose first column alone is on the left."""
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(cell: str) -> str:
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", cell).replace("|", r"\|")


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` decimals; "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def spread(mean: float | None, std: float | None, digits: int = 4) -> str:
    """Format mean ± standard deviation; "-" without a mean, the mean alone without a deviation."""
    return "-" if mean is None else number(mean, digits) + (f" ± {number(std, digits)}" if std is not None else "")


def paper_row(table: str, model: str) -> dict[str, Any]:
    """The paper's row whose key occurs in the model's name; empty if none does."""
    name = Path(model).name.lower()
    return next((row for key, row in PAPER[table].items() if key in name), {})
