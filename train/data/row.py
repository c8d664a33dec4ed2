"""What a row is and its checks: its keys, its images, and its turns as chat messages."""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN


_TURNS = ("conversations", "messages", "texts")
READ = ("id", "image", "images", *_TURNS, "system")
# Keys of published datasets that say where a row is from, and nothing about what is asked and answered.
DESCRIBING = {
    *("_id", "uid", "uuid", "idx", "index", "__index_level_0__", "image_id", "question_id", "sample_id", "hash"),
    *("dataset", "dataset_name", "data_source", "source", "origin", "split", "subset", "url", "license", "model"),
    *("task", "task_type", "type", "category", "topic", "domain", "tags", "language", "lang", "metadata", "meta"),
    *("width", "height", "width_list", "height_list", "created_at", "timestamp", "score"),
    *("relevance_ratings", "relevance_min", "formatting_ratings", "formatting_min", "visual_dependency_ratings"),
    *("visual_dependency_min", "image_correspondence_ratings", "image_correspondence_min"),
}
# Those of rows that are sound, but for what is trained here.
NOT_SERVED = {"video", "videos", "audio", "audios", "tools", "objects", "chosen", "rejected", "rejected_response"}
_DEFAULTS = ("loss", "weight", "train")  # of a turn: true or 1 is what happens anyway
_FILES = ("image", "path", "url")  # of a part of `content`
NO_FILE = "there is no image file"
IMAGE_TEXT = "< image >"  # `<image>` in a text, which the tokenizer would take for an image
_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
# What other programs write where LLaVA's rows have `<image>`: Qwen-VL's, InternLM-XComposer's, Phi-3's.
_NOT_SERVED = re.compile(r"<(?:video|audio|ImageHere|\|?image_?1\|?)>|<img>(?=[^<]*</img>)")


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


def images_and_turns(row: dict[str, Any]) -> tuple[Any, Any]:
    """The images and the turns of a row: `messages` (role, content) and `texts` become LLaVA's `conversations`.

    Raises:
        BadRow: a key is not read, or two keys say the same.
    """
    if all(row.get(key) is None for key in _TURNS):
        raise BadRow("`conversations` is not a list of {from, value}", f"the keys are {short([*row])}")
    for key in (key for key, value in row.items() if key not in (*READ, *DESCRIBING) and is_filled(value)):
        if key in NOT_SERVED:
            raise BadRow(f"`{key}` is not served", short(row[key]), filtered=True)
        raise BadRow(f"the key {short(key)} is not read: remove it", short(row[key]))
    images, turns = _one_of(row, "image", "images"), _one_of(row, *_TURNS)
    if not isinstance(turns, list):
        return images, turns
    inside: list[Any] = []
    if is_filled(row.get("texts")):
        turns = [turn for pair in turns for turn in _question_and_answer(pair)]
    turns = [_turn(turn, inside) if isinstance(turn, dict) else turn for turn in turns]
    if inside and is_filled(images):
        raise BadRow("the row has images beside and inside its turns")
    if is_filled(system := row.get("system")):
        turns = [{"from": "system", "value": system}, *turns]
    return inside or images, turns


def is_filled(value: Any) -> bool:
    """Whether a value says something; a table has a value for every column."""
    if isinstance(value, dict):
        return any(map(is_filled, value.values()))
    return value is not None and value != "" and value != []


def _one_of(row: dict[str, Any], *keys: str) -> Any:
    given = [key for key in keys if is_filled(row.get(key))]
    if len(given) > 1:
        raise BadRow(f"the row has both {' and '.join(f'`{key}`' for key in given)}")
    return row[given[0]] if given else next((row[key] for key in keys if row.get(key) is not None), None)


def _question_and_answer(pair: Any) -> list[Any]:
    """The turns of an entry of `texts`, {user, assistant}, as in FineVision and the Cauldron."""
    if not isinstance(pair, dict):
        return [pair]
    for key in (key for key, value in pair.items() if key not in ("user", "assistant", "source") and is_filled(value)):
        raise BadRow(f"the key {short(key)} of a turn is not read: remove it", short(pair[key]))
    return [{"from": role, "value": pair.get(role)} for role in ("user", "assistant")]


def _turn(turn: dict[str, Any], inside: list[Any]) -> dict[str, Any]:
    """A turn as {from, value}; the images that its content names are added to `inside`."""
    who, what = ("role", "content") if "role" in turn else ("from", "value")
    for key, value in turn.items():
        if key not in (who, what) and is_filled(value) and not (key in _DEFAULTS and value == 1):
            raise BadRow(f"the key {short(key)} of a turn is not read: remove it", short(value))
    value = turn.get(what)
    if what == "content" and isinstance(value, list):
        value = "".join(_part(part, inside) for part in value)
    return {"from": turn.get(who), "value": value}


def _part(part: Any, inside: list[Any]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    read = ("type", "index", *(_FILES if kind == "image" else ("text",)))
    for key in (key for key in part if kind in ("text", "image") and key not in read and is_filled(part[key])):
        raise BadRow(f"the key {short(key)} of a part is not read: remove it", short(part[key]))
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"].replace(IMAGE_TOKEN, IMAGE_TEXT)
    if kind == "image":
        inside += [part[key] for key in _FILES if is_filled(part.get(key))]
        return IMAGE_TOKEN
    raise BadRow("a part of `content` is neither text nor image", short(part), filtered=isinstance(kind, str))


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
    for message in users:
        if other := _NOT_SERVED.search(message["content"]):
            raise BadRow(f"`{other.group()}` is not served", filtered=True)
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
