"""Reads LLaVA's JSON (`id`, optional `image`, `conversations`) and checks every row before training starts."""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from modeling_aligned_llava.errors import UserError


PLACEHOLDER = "<image>"
_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


def read_conversations(data_path: str | Path, image_folder: str | Path) -> list[dict[str, Any]]:
    """Rows `{"messages": [{"role", "content"}], "images": [path]}`; text-only rows have `images` empty.

    As in LLaVA the image comes first in its turn, wherever the placeholder stood. Any other literal `<image>` is
    text, and is spaced out so that the tokenizer does not take it for an image.

    Raises:
        UserError: the file is missing or broken, or a row is malformed, has no image file, or leaves the folder.
    """
    path = Path(data_path)
    if not path.is_file():
        raise UserError(f"data_path: there is no file {path}")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{path} must be a JSON list of conversations, and not empty")
    return list(_convert(rows, path, Path(image_folder)))


def _convert(rows: list[Any], path: Path, image_folder: Path) -> Iterator[dict[str, Any]]:
    for index, row in enumerate(rows):
        where = f"{path}, row {index}"
        if not isinstance(row, dict):
            raise UserError(f"{where}: not an object with conversations")
        where += f" (id {row['id']})" if "id" in row else ""
        image = row.get("image")
        images = [] if image is None else [_image_path(image, image_folder, where)]
        yield {"messages": _messages(row.get("conversations"), bool(images), where), "images": images}


def _image_path(image: Any, folder: Path, where: str) -> str:
    if not isinstance(image, str):
        raise UserError(f"{where}: `image` must be one file name, not {image!r}")
    relative = PurePosixPath(image)
    if relative.is_absolute() or ".." in relative.parts:
        raise UserError(f"{where}: image {image} leaves the image folder {folder}")
    path = folder / relative
    if not path.is_file():
        raise UserError(f"{where}: there is no image file {path}")
    return str(path)


def _messages(turns: Any, has_image: bool, where: str) -> list[dict[str, Any]]:
    if not isinstance(turns, list) or not all(isinstance(t, dict) and isinstance(t.get("value"), str) for t in turns):
        raise UserError(f"{where}: `conversations` must be a list of {{from, value}}")
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if turn.get("from") not in _ROLES:
            raise UserError(f"{where}: a turn is from {turn.get('from')!r}, not {', '.join(_ROLES)}")
        messages.append({"role": _ROLES[turn["from"]], "content": turn["value"]})
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        raise UserError(f"{where}: turns must alternate human, gpt, ..., and end with gpt")
    # The image belongs to the first human turn that mentions it, or to the first one.
    users = [message for message in messages if message["role"] == "user"]
    asking = next((m for m in users if PLACEHOLDER in m["content"]), users[0]) if has_image else None
    for message in messages:
        text = message["content"]
        if message is asking:
            text = text.replace(PLACEHOLDER, "", 1).strip()
        parts = [{"type": "text", "text": text.replace(PLACEHOLDER, "< image >")}]
        message["content"] = [{"type": "image"}, *parts] if message is asking else parts
    return messages
