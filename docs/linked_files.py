"""A hook of mkdocs: a link out of docs/ (`../configuration/methods.yaml`) leads to a copy of that file in the site.

The same links then work in the repository and in the site, and one to a file that is not there fails the build.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files


OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(?:#[^)\s]*)?\)")  # a copy as text has no anchors


def _copy(name: str) -> str:
    """Figures keep their names; all else becomes text, which browsers show, whatever it is."""
    return f"repository/{name}" if name.endswith((".svg", ".png")) else f"repository/{name}.txt"


def on_files(files: Files, config: Any) -> Files:
    """Add every file of the repository that a page of docs/ links to."""
    root = Path(config.docs_dir).parent
    for page in list(files.documentation_pages()):
        for name in OUTSIDE.findall(page.content_string):
            if not (root / name).is_file():
                raise PluginError(f"{page.src_uri} links to {name}, which is not there")
            if files.get_file_from_path(_copy(name)) is None:
                files.append(File.generated(config, _copy(name), abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn such links to the copies; all pages with one lie in docs/ itself."""
    return OUTSIDE.sub(lambda link: f"]({_copy(link[1])})", markdown)
