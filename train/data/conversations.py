"""Check the images and the turns of a row in LLaVA's format, and turn them into chat messages."""

import os
from pathlib import Path, PurePosixPath
from typing import Any

from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN


NO_FILE = "there is no image file"
IMAGE_TEXT = "< image >"  # `<image>` in a text, which the tokenizer would take for an image
_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
_NOT_SERVED = ("<video>", "<audio>")


class EmbeddedImage(str):
    """The name of an image embedded in the data, `embedded:ROW:NUMBER`, and its size in bytes."""

    PREFIX = "embedded:"
    size: int


class BadRow(Exception):
    """A row that cannot be used.

    Args:
        reason: the kind of fault, worded the same for all rows that have it.
        detail: what is specific to this row.
        filtered: the row is sound but does not fit the recipe (too long, turns in another order); others are damaged.
    """

    def __init__(self, reason: str, detail: str = "", filtered: bool = False):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.filtered = filtered


def image_files(image: Any, folder: Path | None) -> list[str]:
    """The paths of the files that a row names, all inside `folder`.

    Raises:
        BadRow: a name leaves the folder, or there is no such file.
    """
    names = [] if image is None else image if isinstance(image, list) else [image]
    return [name if isinstance(name, EmbeddedImage) else _image_file(name, folder) for name in names]


def _image_file(name: Any, folder: Path | None) -> str:
    if not isinstance(name, str) or not name:
        raise BadRow("`image` is not a file name", short(name))
    if folder is None:
        raise BadRow("there is no image_folder", name)
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name:
        raise BadRow(f"image leaves the image folder {folder}", name)
    path = os.path.join(folder, name)
    if not name.isprintable() or not os.path.isfile(path):
        raise BadRow(NO_FILE, path if path.isprintable() else short(path))
    return path


def messages_of(turns: Any, images: int) -> list[dict[str, Any]]:
    """LLaVA's turns as chat messages `{"role", "content": [parts]}` with `images` image parts.

    A single image comes first in the turn that mentions it (or in the first turn), as in LLaVA. Several images take
    the place of their placeholders, or all come first if there is no placeholder. `<image>` in an answer is text, and
    becomes `< image >`. Answers lose white space around them: a leading line break would join that of the template in
    one token, which no prompt ends with.

    Raises:
        BadRow: the turns are malformed, empty, one-sided or in another order, or mention more or fewer images than
            there are, or a video.
    """
    if not isinstance(turns, list) or not all(isinstance(t, dict) and isinstance(t.get("value"), str) for t in turns):
        raise BadRow("`conversations` is not a list of {from, value}")
    if not turns:
        raise BadRow("the conversation is empty")
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if not isinstance(turn.get("from"), str) or turn["from"] not in _ROLES:
            raise BadRow(f"a turn is not from {', '.join(_ROLES)}", short(turn.get("from")))
        messages.append({"role": _ROLES[turn["from"]], "content": turn["value"]})
    spoken = messages[1:] if messages[0]["role"] == "system" else messages
    if not spoken or [m["role"] for m in spoken] != ["user", "assistant"] * (len(spoken) // 2):
        raise BadRow("turns do not alternate human, gpt, ..., ending with gpt", filtered=True)
    for message in messages:
        _check_text(message, images)
    _place_images(spoken, images)
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = message["content"].strip()
        if isinstance(message["content"], str):
            message["content"] = [_text(message["content"])]
    return messages


def text_of(messages: list[dict[str, Any]]) -> str:
    """The text of a conversation without its images, one line a turn."""
    return "\n".join(part["text"] for message in messages for part in message["content"] if part["type"] == "text")


def _check_text(message: dict[str, Any], images: int) -> None:
    text = message["content"]
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRow("the text is not valid Unicode", str(error)) from error
    if message["role"] == "assistant" and not text.strip():
        raise BadRow("an answer is empty")
    if message["role"] == "user" and not images and not text.strip():
        raise BadRow("a question is empty")


def _place_images(spoken: list[dict[str, Any]], images: int) -> None:
    """Replace the text of the turns with images by parts."""
    users = [message for message in spoken if message["role"] == "user"]
    mentions = sum(message["content"].count(IMAGE_TOKEN) for message in users)
    for other in _NOT_SERVED:
        if any(other in message["content"] for message in users):
            raise BadRow(f"`{other}` is not served", filtered=True)
    if mentions > images:
        raise BadRow("more <image> than images", f"{mentions} for {images}")
    if images == 1:
        asking = next((m for m in users if IMAGE_TOKEN in m["content"]), users[0])
        asking["content"] = [_IMAGE, _text(asking["content"].replace(IMAGE_TOKEN, "", 1).strip())]
    elif images and not mentions:
        users[0]["content"] = [*[_IMAGE] * images, _text(users[0]["content"])]
    elif mentions < images:
        raise BadRow("fewer <image> than images", f"{mentions} for {images}")
    elif images:
        for message in users:
            head, *rest = message["content"].split(IMAGE_TOKEN)
            # the template ends the line after an image
            pieces = [[_text(head)], *([_IMAGE, _text(piece.removeprefix("\n"))] for piece in rest)]
            message["content"] = [part for piece in pieces for part in piece if part is _IMAGE or part["text"]]


_IMAGE = {"type": "image"}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text.replace(IMAGE_TOKEN, IMAGE_TEXT)}


def short(value: Any) -> str:
    """A value in a message."""
    text = ascii(value)
    return text if len(text) <= 200 else text[:200] + "..."
