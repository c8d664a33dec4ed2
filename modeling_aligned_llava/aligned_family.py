"""Models of other families with the norm of the paper on their connector; the file is saved beside their weights.

`AlignedX` is transformers' class X, which would load such a folder without its norm. The Auto classes find it by the
`auto_map` of the config.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .configuration_aligned_llava import answers_about_images  # first: it names the transformers that the rest needs


# isort: split
import transformers
from safetensors.torch import load_file
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import cached_file, logging

from .hub_folder import is_hub_id
from .modeling_aligned_llava import NORM, WITH_HEAD, NormOnConnector


ADAPTER_SETTINGS, ADAPTERS = "adapter_config.json", "adapter_model.safetensors"  # of peft
_OF_ADAPTERS = ("adapter_kwargs", "revision", "subfolder", "_commit_hash")  # arguments that belong to their folder


class _Aligned(NormOnConnector):
    """What `aligned_class` adds to a class of transformers."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        point_to_class(self)

    @classmethod
    def from_pretrained(cls, source: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """See `NormOnConnector`; LoRA adapters that were kept apart are merged into the model that they belong to.

        Raises:
            OSError: the checkpoint lacks tensors, or adapters and their model do not fit.
            ImportError: adapters need peft.
        """
        adapters = adapters_in(source, kwargs.get("revision"))
        if adapters is None:
            return super().from_pretrained(source, *args, **kwargs)
        reports, settings = kwargs.pop("output_loading_info", False), _lora(source, adapters)
        below = settings.base_model_name_or_path
        if not Path(below).is_dir() and not is_hub_id(below):
            raise OSError(f"{source}: there is no folder {below}, to whose model its adapters belong")
        kwargs.setdefault("config", transformers.AutoConfig.from_pretrained(adapters))
        kwargs = {name: value for name, value in kwargs.items() if name not in _OF_ADAPTERS}
        kwargs["revision"] = settings.revision or "main"
        with without_report():
            chained = adapters_in(below, settings.revision) is not None
            load = cls.from_pretrained if chained else super().from_pretrained
            model, report = load(below, *args, output_loading_info=True, **kwargs)
        # they bring the norm
        report["missing_keys"] = {name for name in report["missing_keys"] if f".{NORM}." not in name}
        if not reports:
            cls.require_tensors(below, report, kwargs)
        model = _merged(source, adapters, settings, model)
        return (model, report) if reports else model

    @classmethod
    def is_custom_code(cls) -> bool:
        return False  # else transformers would not translate the family's tensor names between Hub and memory


def point_to_class(model: Any) -> None:
    """Name our classes in the config, for vLLM and the Auto classes that would build the plain model."""
    if getattr(model.config, NORM)["projector_norm"] != "none":
        name = f"{__name__.rpartition('.')[2]}.Aligned{type(model).__name__.removeprefix('Aligned')}"
        model.config.auto_map = {"AutoModel": name.replace("ForConditionalGeneration", "Model")}
        if name.endswith("ForConditionalGeneration"):
            model.config.auto_map |= dict.fromkeys(WITH_HEAD, name)
            if model.config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:  # Gemma 3's, with images
                model.config.auto_map["AutoModelForCausalLM"] = name


@contextmanager
def without_report() -> Iterator[None]:
    """Silence transformers' loading report, which lists every tensor that is missing or left unread."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def adapters_in(source: Any, revision: str | None = None) -> Path | None:
    """The folder of the adapters that `source`, a folder or Hub id, holds in place of a whole model, or None."""
    try:
        cached_file(source, ADAPTER_SETTINGS, revision=revision)
    except OSError:  # it has none; what else may be wrong, loading the model says
        return None
    try:
        weights: Any = cached_file(source, ADAPTERS, revision=revision)
    except OSError as error:
        raise OSError(f"{source} has {ADAPTER_SETTINGS} and no {ADAPTERS}; copy the folder again") from error
    folder = Path(weights).parent
    return None if any(folder.glob("model*.safetensors")) else folder  # adapters beside a whole model: transformers'


def _peft(source: Any) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ImportError(f"{source} holds adapters, which need peft: pip install peft") from error
    return peft


def _lora(source: Any, folder: Path) -> Any:
    """The `LoraConfig` of a folder of adapters."""
    peft = _peft(source)
    with warnings.catch_warnings():  # of the entry that tells peft of the norm
        warnings.simplefilter("ignore")
        return peft.LoraConfig.from_pretrained(str(folder))


def _merged(source: Any, folder: Path, settings: Any, model: Any) -> Any:
    """Merge adapters into the model that they were trained on; modules that were trained in full are replaced.

    Raises:
        OSError: a tensor is missing, or belongs to another model.
    """
    peft = _peft(source)
    adapted, tensors = peft.PeftModel(model, settings), load_file(folder / ADAPTERS)
    if wrong := sorted(tensors.keys() ^ peft.get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()):
        said = "lacks" if wrong[0] not in tensors else "holds another model's"
        raise OSError(f"{source} {said} {wrong[0]} ({len(wrong)} such tensors) of {settings.base_model_name_or_path}")
    peft.set_peft_model_state_dict(adapted, tensors)
    return adapted.merge_and_unload(safe_merge=True).eval()


@cache
def aligned_class(plain: Any) -> Any:
    """`AlignedX` for a model class X of transformers."""
    kept = [*(getattr(plain, "_keep_in_fp32_modules_strict", None) or ()), NORM]
    members = {"__module__": __name__, "__doc__": _Aligned.__doc__, "_keep_in_fp32_modules_strict": kept}
    aligned: Any = type(f"Aligned{plain.__name__}", (_Aligned, plain), members)
    if (names := get_checkpoint_conversion_mapping(plain.__name__)) is not None:
        register_checkpoint_conversion_mapping(aligned.__name__, names, overwrite=True)
    with_head = plain.__name__.endswith("ForConditionalGeneration")
    if with_head:
        answers_about_images(aligned.__name__, aligned.__name__)  # its model type is the plain model's
    aligned.register_for_auto_class("AutoModelForImageTextToText" if with_head else "AutoModel")
    return aligned


def __getattr__(name: str) -> Any:
    """`AlignedX`, which the Auto classes ask for by its name."""
    plain = getattr(transformers, name.removeprefix("Aligned"), None) if name.startswith("Aligned") else None
    if plain is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return aligned_class(plain)
