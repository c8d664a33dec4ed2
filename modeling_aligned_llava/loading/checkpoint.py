"""Reads the parts of a checkpoint; the only place that calls `from_pretrained` for weights.

transformers fills a missing tensor with random numbers and only prints a report; `load_strict` raises an error.
"""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, LlavaNextProcessor, LlavaProcessor, PreTrainedTokenizerBase, ProcessorMixin
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

import modeling_aligned_llava.loading.registration  # noqa: F401  the Auto classes then know the model
from modeling_aligned_llava.aligned_family import ADAPTER_SETTINGS, NORM, without_report
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.hub_folder import is_hub_id
from modeling_aligned_llava.loading.remote_code import copy_remote_code


_WIDTHS = ("hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads")
_WIDER = 8  # quantized tensors are packed
IMAGE_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
VISION_LANGUAGE = frozenset(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) | {"aligned_llava"}
CAUSAL = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
# The tensors of our norm, in AlignedLlava and in other families: leaving one unread changes the model.
NORM_TENSORS = rf".*\b(multi_modal_projector\.norm|{NORM})\..*"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_source(source: str | Path, what: str) -> None:
    """Check that `source` is a folder or a Hub id (`owner/name` or `owner/name@REVISION`).

    Raises:
        UserError: it is neither.
    """
    if not Path(source).is_dir() and not (isinstance(source, str) and is_hub_id(source.partition("@")[0])):
        raise UserError(f"{what}: there is no folder {source}")


def local_folder(source: str, trust_remote_code: bool = False) -> str:
    """Return the folder of a checkpoint, downloaded without pickles if `source` is a Hub id.

    Raises:
        UserError: it cannot be downloaded, or code from the Hub is to run, and no commit is named.
    """
    name, revision = pinned(source, trust_remote_code)
    if Path(name).is_dir():
        return name
    with errors_named(f"there is no folder {name}, and it cannot be downloaded"):
        return snapshot_download(name, revision=revision, ignore_patterns=[*_PICKLES])


def pinned(source: str | Path, trust_remote_code: bool = False) -> tuple[str, str | None]:
    """Split `owner/name@REVISION` into Hub id and revision; a folder has none.

    Raises:
        UserError: code from the Hub is to run, and the revision is not a commit: a branch or tag can change later.
    """
    if Path(source).is_dir():
        return str(source), None
    name, _, revision = str(source).partition("@")
    if trust_remote_code and not _COMMIT.fullmatch(revision):
        raise UserError(
            f"{source}: code from the Hub runs only at a pinned commit; read it there, then write {name}@COMMIT "
            "(40 hexadecimal digits)"
        )
    return name, revision or None


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the content of a folder's config.json.

    Raises:
        UserError: it cannot be read.
    """
    with errors_named(f"cannot load {folder}", OSError, ValueError, RecursionError):
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise UserError(f"cannot load {folder}: its config.json is no JSON object")
    return config


def sees_images(folder: str | Path) -> bool:
    """Whether a folder holds a vision-language model: it has a processor of images, or its class reads them.

    Raises:
        UserError: no Auto class loads a model of its type, and it brings no code of its own.
    """
    config = read_config(folder)
    kind, auto_classes = config.get("model_type", ""), config.get("auto_map", {})
    processor = any((Path(folder) / name).exists() for name in IMAGE_PROCESSORS)
    visual = (
        processor
        or "vision_config" in config
        or kind in VISION_LANGUAGE
        or "AutoModelForImageTextToText" in auto_classes
    )
    if not auto_classes and kind not in (VISION_LANGUAGE if visual else CAUSAL):
        wanted = "AutoModelForImageTextToText" if visual else "AutoModelForCausalLM"
        raise UserError(f"{folder}: {kind or 'a model without a type'} cannot be served: {wanted} does not load it")
    return visual


def load_part(auto_class: Any, source: str | Path, what: str = "", **kwargs: Any) -> Any:
    """Call `auto_class.from_pretrained(source)` for a config, tokenizer or processor; weights need `load_strict`.

    Code of the checkpoint runs only with `trust_remote_code=True`: transformers would ask on the terminal.

    Args:
        source: folder or Hub id, perhaps with `@REVISION`.
        what: names the part in the error message.

    Raises:
        UserError: the part cannot be loaded, or code from the Hub is not pinned.
    """
    trusted = kwargs.setdefault("trust_remote_code", False)
    name, revision = pinned(source, trusted)
    if revision is not None:
        kwargs["revision"] = revision
    _check_sizes(source, what)
    try:
        if trusted:
            copy_remote_code(name, revision)
        part = auto_class.from_pretrained(name, **kwargs)
    except UserError:
        raise
    except BaseException as error:  # a damaged file makes transformers raise anything
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of tokenizers, in Rust
            raise
        reason = _reason(error) + _adapters_alone(Path(name))
        raise UserError(f"{_prefix(what)}cannot load {source}: {reason}") from error
    if isinstance(part, LlavaProcessor | LlavaNextProcessor) and _may_lack_settings(part):
        _complete(part, load_part(AutoConfig, source, what, trust_remote_code=trusted))
    tokenizer = part.tokenizer if isinstance(part, ProcessorMixin) else part
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        # It notes how it was loaded, and would save that: the same checkpoint would differ online and offline. And how
        # a text was cut when it was saved: a processor would cut every prompt so.
        for name in ("is_local", "local_files_only", "max_length", "truncation", "padding"):
            tokenizer.init_kwargs.pop(name, None)
    return part


def _adapters_alone(folder: Path) -> str:
    alone = (folder / ADAPTER_SETTINGS).is_file() and not any(folder.glob("model*.safetensors"))
    return "; it holds adapters without a model: merge them (peft's `merge_and_unload`)" if alone else ""


def _may_lack_settings(processor: Any) -> bool:
    by_default = processor.vision_feature_select_strategy == "default"
    return not processor.num_additional_image_tokens and (processor.patch_size is None or by_default)


def _complete(processor: Any, config: Any) -> None:
    """Give the processor of a LLaVA what it needs to write visual tokens; before transformers 4.46 models wrote them,
    and processors were saved without.
    """
    if processor.patch_size is None:
        processor.patch_size = config.vision_config.patch_size
        # VipLlava's configuration has none, and its model leaves the class token out.
        processor.vision_feature_select_strategy = getattr(config, "vision_feature_select_strategy", "default")
    if config.vision_config.model_type == "clip_vision_model":
        processor.num_additional_image_tokens = 1  # the class token, which "default" leaves out


def load_strict(
    auto_class: Any,
    source: str | Path,
    what: str = "",
    *,
    unused: str | None = None,
    optional: str | None = None,
    **kwargs: Any,
) -> Any:
    """Load a model, in evaluation mode, whose tensors all come from the checkpoint's safetensors; pickles are refused.

    Args:
        auto_class: a model class or an Auto class.
        source: folder or Hub id.
        what: names the part in error messages.
        unused: pattern of the tensors that the model leaves unread on purpose (dropped layers, a head); any other
            unexpected tensor is then an error. None: transformers reports unexpected tensors, and only those of an
            alignment norm are an error.
        optional: pattern of the tensors that may be missing because nothing reads them.
        **kwargs: as for `from_pretrained`.

    Raises:
        UserError: the model cannot be loaded, or a tensor is missing, has another shape or would be left unread.
    """
    _check_weights(source, what)
    with without_report() if unused is not None else nullcontext():
        model, info = load_part(
            auto_class,
            source,
            what,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            **kwargs,
        )
    _repair_generation(model)
    missing = sorted(name for name in info["missing_keys"] if optional is None or not re.fullmatch(optional, name))
    if missing:
        raise UserError(f"{_prefix(what)}{source} lacks {_tensors(missing)}; copy the weights again")
    for name, shape, expected in sorted(info["mismatched_keys"]):
        raise UserError(
            f"{_prefix(what)}{source}: {name} has shape {list(shape)}, its configuration says {list(expected)}"
        )
    unread = sorted(
        name
        for name in info["unexpected_keys"]
        if (re.fullmatch(NORM_TENSORS, name) if unused is None else not re.fullmatch(unused, name))
    )
    if unread:
        raise UserError(f"{_prefix(what)}{source} holds {_tensors(unread)}, which its configuration does not describe")
    return model


def _repair_generation(model: Any) -> None:
    """Let a model sample if its generation_config.json has a temperature but not `do_sample`, as Vicuna's has:
    transformers reads such a file and refuses to write it.
    """
    config = getattr(model, "generation_config", None)
    if config is not None and not config.do_sample:
        try:
            config.validate(strict=True)
        except ValueError:
            config.do_sample = True


def _check_weights(source: str | Path, what: str) -> None:
    folder = Path(source)
    if (folder / "model.safetensors").is_file() and (folder / "model.safetensors.index.json").is_file():
        raise UserError(
            f"{_prefix(what)}{source} has model.safetensors and shards with an index, of which only one would be "
            "read: remove the other"
        )
    pickles = [file.name for pattern in _PICKLES for file in sorted(folder.glob(pattern))]
    if pickles and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{_prefix(what)}{source} has its weights in {pickles[0]}, a pickle, which can run code when it is read: "
            "convert them to safetensors"
        )


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    plain = isinstance(error, OSError | ValueError | RuntimeError | ImportError)
    return text if plain and text else f"{type(error).__name__}: {text}"


def _check_sizes(source: str | Path, what: str) -> None:
    """Compare sizes in the configuration of a folder with the tensors in its files, before memory is taken for them.

    Raises:
        UserError: there are more layers than tensors, or a width is far beyond every dimension of any tensor.
    """
    files = sorted(Path(source).glob("*.safetensors"))
    adapters = (Path(source) / ADAPTER_SETTINGS).is_file()  # without the tensors of the model below them
    if not files or adapters or not (Path(source) / "config.json").is_file():
        return
    shapes = []
    try:
        for file in files:
            with safe_open(file, framework="pt") as weights:
                shapes += [weights.get_slice(name).get_shape() for name in weights.keys()]
    except SafetensorError as error:
        raise UserError(
            f"{_prefix(what)}cannot load {source}: a weights file is damaged or cut short ({file.name}: {error}); "
            "copy it again"
        ) from error
    limits = dict.fromkeys(_WIDTHS, _WIDER * max((size for shape in shapes for size in shape), default=0))
    limits["num_hidden_layers"] = len(shapes)
    config = read_config(source)
    parts = [value for value in config.values() if isinstance(value, dict) and "hidden_size" in value]
    for part in parts or [config]:  # with parts, sizes beside them are defaults that nothing reads
        for name, limit in limits.items():
            if isinstance(size := part.get(name), int) and size > limit:
                raise UserError(f"{_prefix(what)}{source}: its configuration says {name} {size}, its weights do not")


def end_tokens(*sources: Any) -> list[int]:
    """Return every end-of-sequence id that configs and tokenizers name, whether as an id, a list or not at all.

    Raises:
        UserError: something else is named.
    """
    ids: set[int] = set()
    for source in sources:
        named = getattr(source, "eos_token_id", None)
        ids_of_source = named if isinstance(named, list | tuple) else [] if named is None else [named]
        if not all(isinstance(token, int) for token in ids_of_source):
            raise UserError(f"eos_token_id must be an id or a list of ids, not {named!r}")
        ids.update(ids_of_source)
    return sorted(ids)


def _prefix(what: str) -> str:
    return f"{what}: " if what else ""


def _tensors(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the tensor{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"
