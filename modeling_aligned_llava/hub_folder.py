"""What a published folder holds besides weights and configuration: the processor and a model card, but no local paths.

The file is saved beside the weights with the code that loads them, so it imports nothing but huggingface_hub.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCardData, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id


PROCESSOR_FILES = (
    "*processor*.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.json",  # of transformers 4
    "*.jinja",
    "additional_chat_templates/*.jinja",
)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "adapter_config.json")
MODEL_FILES = ("config.json", "generation_config.json", *WEIGHTS, "*.py")

LOADING = """\
```python
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{name}", trust_remote_code=True)
processor = AutoProcessor.from_pretrained("{name}", trust_remote_code=True)
```

The code that runs is in this folder; read it and pin a revision. With the package `modeling_aligned_llava`,
`load_aligned("{name}")` runs no code of the folder.
"""

_CARD = """\
# {title}

A {kind} checkpoint of method `{method}` (`projector_norm: {norm}`), in the terms of the norm-alignment study
[The Unseen Bias](https://arxiv.org/abs/2512.08374).

## Load

{loading}
## Scores

None came with these weights.
"""


def is_hub_id(name: str) -> bool:
    """Whether `name` is the `owner/name` of a repository on the Hub rather than a path on this machine."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1 and not os.path.exists(name)


def forget_local_paths(config: Any) -> None:
    """Keep the Hub ids that the sub-configs record as their origin; remove local paths."""
    for part in _parts(config):
        if not is_hub_id(part.name_or_path):
            part.name_or_path = ""


def _parts(config: Any) -> list[Any]:
    """The configs in a config: of tower, language model and so on."""
    return [part for part in vars(config).values() if isinstance(getattr(part, "name_or_path", None), str)]


def processor_files(folder: str | os.PathLike) -> Iterator[Path]:
    """Return the files of the processor and its tokenizer in a folder."""
    return (file for pattern in PROCESSOR_FILES for file in sorted(Path(folder).glob(pattern)))


def copy_processor(source: str, revision: str | None, folder: str | os.PathLike) -> None:
    """Copy the processor from `source`, where the weights were loaded from, unless `folder` has its own.

    For a Hub id only the local cache is used: saving never waits for the network.
    """
    if not source or any(processor_files(folder)):
        return
    origin = Path(source)
    if not origin.is_dir():
        try:
            origin = Path(snapshot_download(source, revision=revision, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError):
            return
    for file in processor_files(origin):
        target = Path(folder) / file.relative_to(origin)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)


def missing_tensors(source: Any, names: Collection[str]) -> OSError:
    """Return the error about a checkpoint without the tensors `names`; older transformers may have other names."""
    first = min(names)
    return OSError(
        f"{source} lacks the tensor {first} ({len(names)} in all); copy the weights again, or update transformers"
    )


def write_plain_card(
    config: Any, folder: str | os.PathLike, name: str = "path/to/this/folder", tags: Sequence[str] = ()
) -> None:
    """Write a model card without scores (backbones, method, how to load `name`), unless the folder has one."""
    path = Path(folder) / "README.md"
    if path.exists():
        return
    origins = [part.name_or_path for part in (config, *_parts(config))]
    fields = getattr(config, "alignment_norm", None) or vars(config)  # of other families, and of LLaVA
    method, kind = fields["method"] or "a free combination", config.model_type.removeprefix("aligned_")
    text = _CARD.format(
        title=f"{kind}, {method}",
        kind=kind,
        method=method,
        norm=fields["projector_norm"],
        loading=LOADING.format(name=name),
    )
    data = card_data(tags=tags, base_model=[name for name in dict.fromkeys(origins) if is_hub_id(name)] or None)
    path.write_text(f"---\n{data}\n---\n\n{text}", encoding="utf-8")


def card_data(tags: Sequence[str] = (), **metadata: Any) -> ModelCardData:
    """Return the metadata that all cards share, extended by `metadata`."""
    return ModelCardData(
        pipeline_tag="image-text-to-text",
        library_name="transformers",
        tags=["llava", "norm-alignment", "arxiv:2512.08374", *tags],
        **metadata,
    )


def upload(
    files: dict[str, Path | bytes],
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    commit_description: str | None = None,
) -> str:
    """Upload `files` in one commit; create the repository (and the branch `revision`) if necessary.

    Weights of another name that are there from before are deleted, as `save_pretrained` does in a folder: readers
    would take a single file rather than new shards, and put adapters onto a merged model.

    Args:
        files: path in the repository -> local file, or content.
        private: whether a new repository is private.
        create_pr: open a pull request instead.

    Returns:
        The URL of the commit.
    """
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    there = set(api.list_repo_files(repo_id, revision=revision)) - files.keys()
    left_over = sorted(name for name in there if "/" not in name and any(fnmatch(name, kind) for kind in WEIGHTS))
    added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for name, content in files.items()]
    commit = api.create_commit(
        repo_id,
        [*added, *map(CommitOperationDelete, left_over)],
        commit_message=commit_message or "Upload model",
        commit_description=commit_description,
        revision=revision,
        create_pr=create_pr,
    )
    return str(commit.commit_url)


def push(
    model: Any,
    repo_id: str,
    *,
    token: bool | str | None = None,
    revision: str | None = None,
    max_shard_size: int | str | None = "50GB",
    tags: Sequence[str] = (),
    **options: Any,
) -> str:
    """Save a model and upload the folder; an existing card in the repository is kept.

    Args:
        model: one of this package's models.
        repo_id: name of the repository, created if it does not exist.
        revision: branch to commit to, created if it does not exist.
        max_shard_size: see `save_pretrained`.
        tags: more tags for the card.
        **options: further ones of `upload`: `private`, `create_pr`, `commit_message`, `commit_description`.

    Returns:
        The URL of the commit.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder)
        write_plain_card(model.config, path, repo_id, [*(model.model_tags or ()), *tags])
        model.save_pretrained(path, max_shard_size=max_shard_size)
        files: dict[str, Path | bytes] = {
            file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()
        }
        if HfApi(token=token).file_exists(repo_id, "README.md", revision=revision):
            del files["README.md"]
        return upload(files, repo_id, revision=revision, token=token, **options)


__all__ = ["copy_processor", "forget_local_paths", "push", "upload", "write_plain_card"]
