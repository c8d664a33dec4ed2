"""A pandas table as Markdown, LaTeX or CSV. Lines of a cell are separated by a newline."""

import re

import pandas as pd


def markdown(frame: pd.DataFrame, caption: str = "") -> str:
    """A Markdown table, with the caption below it."""
    rows = [list(frame.columns), *frame.astype(str).to_numpy().tolist()]
    lines = ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" * frame.shape[1] + "|")
    below = ["", caption.replace("*", "\\*")] if caption else []
    return "\n".join([*lines, *below, ""])


def _markdown_cell(text: str) -> str:
    return re.sub(r"([|*])", r"\\\1", text).replace("\n", "<br>")


def latex(frame: pd.DataFrame, caption: str = "", rule_above: int | None = None) -> str:
    r"""A booktabs table; cells of several lines need `\usepackage{makecell}`.

    Args:
        caption: puts the table into a `table` environment.
        rule_above: a rule is drawn above this row.
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
        caption=caption.replace("%", r"\%"),
        position_float="centering",
    )
    return text.replace("\\centering\n", "\\centering\\scriptsize\n", 1)


def _latex_cell(text: str) -> str:
    return r"\makecell{" + text.replace("[", "{[}").replace("\n", r" \\ ") + "}"


def comma_separated(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")
