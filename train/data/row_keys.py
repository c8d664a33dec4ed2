"""The keys of a row: read, passed over because they only describe the row, or a reason to leave the row out."""

from typing import Any

from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN
from train.data.conversations import IMAGE_TEXT, BadRow, short


READ = ("id", "image", "images", "conversations", "messages", "system")
# Keys of published datasets that say where a row is from, and nothing about what is asked and answered.
DESCRIBING = {
    *("_id", "uid", "uuid", "idx", "index", "__index_level_0__", "image_id", "question_id", "sample_id", "hash"),
    *("dataset", "dataset_name", "data_source", "source", "origin", "split", "subset", "url", "license", "model"),
    *("task", "task_type", "type", "category", "topic", "domain", "tags", "language", "lang", "metadata", "meta"),
    *("width", "height", "width_list", "height_list", "created_at", "timestamp", "score"),
}
# Those of rows that are sound, but for what is trained here.
NOT_SERVED = {"video", "videos", "audio", "audios", "tools", "objects", "chosen", "rejected", "rejected_response"}
_DEFAULTS = ("loss", "weight", "train")  # of a turn: true or 1 is what happens anyway


def images_and_turns(row: dict[str, Any]) -> tuple[Any, Any]:
    """The images and the turns of a row, whose `messages` (role, content) become LLaVA's `conversations`.

    Raises:
        BadRow: a key is not read, or two keys say the same.
    """
    if row.get("conversations") is None and row.get("messages") is None:
        raise BadRow("`conversations` is not a list of {from, value}", f"the keys are {short([*row])}")
    for key in (key for key, value in row.items() if key not in (*READ, *DESCRIBING) and is_filled(value)):
        if key in NOT_SERVED:
            raise BadRow(f"`{key}` is not served", short(row[key]), filtered=True)
        raise BadRow(f"the key {short(key)} is not read: remove it", short(row[key]))
    images, turns = _one_of(row, "image", "images"), _one_of(row, "conversations", "messages")
    if not isinstance(turns, list):
        return images, turns
    inside: list[Any] = []
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
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"].replace(IMAGE_TOKEN, IMAGE_TEXT)
    if kind == "image":
        inside += [part[key] for key in ("image", "path", "url") if is_filled(part.get(key))]
        return IMAGE_TOKEN
    raise BadRow("a part of `content` is neither text nor image", short(part), filtered=isinstance(kind, str))
