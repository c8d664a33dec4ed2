"""What the pages of the documentation show as code."""

import re
from pathlib import Path
from textwrap import dedent


def blocks(page: Path, language: str, indent: str = " *", section: str | None = None) -> list[str]:
    """The fenced blocks of a page in a language, also those inside lists, without their indentation.

    Args:
        indent: a regular expression for the spaces before the fences; those of numbered steps are four.
        section: heading of the second level under which they stand; None: anywhere.
    """
    text = page.read_text(encoding="utf-8")
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    fenced = re.findall(rf"^({indent})```{language}\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [dedent(block) for _, block in fenced]
