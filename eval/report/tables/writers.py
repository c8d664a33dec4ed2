"""A pandas table as Markdown, LaTeX or CSV. Lines of a cell are separated by a newline."""

import re
from collections.abc import Sequence

import pandas as pd


def markdown(frame: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """A Markdown table, with a paragraph per note below it."""
    rows = [list(frame.columns), *frame.astype(str).to_numpy().tolist()]
    lines = ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" * frame.shape[1] + "|")
    below = [line for note in notes for line in ("", re.sub(r"([*_])", r"\\\1", plain(note)))]
    return "\n".join([*lines, *below, ""])


def _markdown_cell(text: str) -> str:
    return re.sub(r"([|*])", r"\\\1", plain(text)).replace("\n", "<br>")


def plain(text: str) -> str:
    """Text for Markdown, in which a tag or a link of somebody else's stays text."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("](", r"]\(")


def latex(frame: pd.DataFrame, caption: str = "", rule_above: int | None = None, notes: Sequence[str] = ()) -> str:
    r"""A booktabs table; cells of several lines need `\usepackage{makecell}`.

    Args:
        caption: puts the table into a `table` environment.
        rule_above: a rule is drawn above this row.
        notes: paragraphs below the table.
    """
    style = frame.style.hide(axis="index").format(escape="latex")
    if not caption:
        return style.to_latex(hrules=True)
    style = style.format(_latex_cell, escape="latex", subset=frame.columns[1:])
    if rule_above is not None:
        first = pd.IndexSlice[rule_above, frame.columns[0]]
        style = style.format(lambda label: f"\\midrule\n{label}", escape="latex", subset=first)
    text = style.to_latex(
        hrules=True,
        column_format="l" + "c" * (frame.shape[1] - 1),
        caption=_escaped(caption),
        position_float="centering",
    )
    below = "".join(f"\\par\\smallskip\\parbox{{\\linewidth}}{{{_escaped(note)}}}\n" for note in notes)
    text = text.replace("\\centering\n", "\\centering\\scriptsize\n", 1)
    return text.replace("\\end{table}", below + "\\end{table}")


def _escaped(text: str) -> str:
    return re.sub(r"([%_&#])", r"\\\1", text)


def _latex_cell(text: str) -> str:
    return r"\makecell{" + text.replace("[", "{[}").replace("\n", r" \\ ") + "}"


def comma_separated(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")
