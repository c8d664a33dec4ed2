"""The parts of any vision-language model: embeddings, decoder layers, vision encoder, connector, image token.

The one registry of model families. `align` serves those in `FAMILIES` (paper section 5); the diagnostics also look for
the connector of unknown families by name. All other parts are found by transformers' own `get_decoder`, `get_encoder`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from modeling_aligned_llava.errors import UserError


IMAGE_TOKEN = "<image>"  # noqa: S105  in LLaVA's data, and in the tokenizer of the checkpoints that we assemble


class Family(NamedTuple):
    """Where a family keeps its connector, and what a reader of its norms has to know.

    Args:
        connector: path below `model.base_model` of the module whose output [..., D] becomes the visual tokens.
        note: what the family does beyond the reach of a norm on the connector's output; "": nothing.
    """

    connector: str
    note: str = ""


_NEWLINE = "`image_newline`, a learned vector with a norm of its own, ends each row of an image"
_SCALED = "text is scaled by sqrt(D) inside the embedding module; `s` is the norm after that scaling"
_SANDWICH = "the decoder also normalises what each layer adds (sandwich norm)"

# The families that `align` serves, by model type.
FAMILIES: dict[str, Family] = {
    "llava": Family("multi_modal_projector"),
    "llava_next": Family("multi_modal_projector", _NEWLINE),
    "llava_onevision": Family(
        "multi_modal_projector",
        f"{_NEWLINE}; videos, and images above the `anyres_max` limit, are resampled after the norm: "
        "an average of tokens is shorter than the tokens",
    ),
    "qwen2_vl": Family("visual.merger"),
    "qwen2_5_vl": Family("visual.merger"),
    "qwen3_vl": Family(
        "visual.merger",
        "DeepStack adds the features of further mergers after the first decoder layers, at whatever norm they have",
    ),
    "internvl": Family("multi_modal_projector"),
    "idefics3": Family("connector"),
    "smolvlm": Family("connector"),
    "paligemma": Family("multi_modal_projector", _SCALED),
    "gemma3": Family("multi_modal_projector", f"{_SCALED}; {_SANDWICH}"),
    "glm4v": Family("visual.merger", _SANDWICH),
    "mistral3": Family("multi_modal_projector"),
    "ovis2": Family(
        "visual_embeddings_table",
        "the indicator tokens around an image are rows of the same table: they are aligned too",
    ),
}

_CROSS_ATTENTION = "its images enter by cross-attention: no visual token stands among the text"
_IMAGE_VOCABULARY = "its images are tokens of the text vocabulary: there is no connector, and no second norm"

# The model types that `align` cannot serve, and why; any other model type is unknown rather than impossible.
REFUSED: dict[str, str] = {
    "aligned_llava": "it has the norm inside; choose the method at assembly or in from_pretrained",
    "mllama": _CROSS_ATTENTION,
    "idefics": _CROSS_ATTENTION,
    "blip": _CROSS_ATTENTION,
    "molmo2": "its visual features are added to text embeddings: the connector's norm does not set that of the sum",
    "chameleon": _IMAGE_VOCABULARY,
    "emu3": _IMAGE_VOCABULARY,
    "fuyu": "it has no vision tower and no connector: pixels are embedded by one linear layer",
}

# Names of connectors in further families, by preference; used where the model type is not in FAMILIES.
_OTHER_CONNECTORS = (
    *("mm_projector", "modality_projection", "embed_vision", "vte", "mlp1", "aligner", "mlp_AR", "vision_projection"),
    *("vision_projector", "multimodal_projector", "image_projection", "vision_adapter", "visual_projection"),
    *("language_projection", "image_to_text_projection", "layerwise_projectors", "resampler_model", "projector"),
    "patch_merger",
)
_IMAGE_TOKENS = (
    *("image_token_id", "image_token_index", "image_patch_id", "media_placeholder_token_id"),
    *("image_context_token_id", "img_context_token_id"),
)
_VISION_ENCODERS = ("vision_tower", "visual", "vision_model", "vision_encoder", "image_tower", "visual_tokenizer")


@dataclass(frozen=True)
class ModelParts:
    """Modules of a model, their paths by part, and the id of the image token (None: the model has none)."""

    embedding: nn.Embedding
    decoder: nn.Module
    layers: nn.ModuleList
    vision: nn.Module | None
    connector: nn.Module
    image_token_id: int | None
    names: dict[str, str]

    @property
    def connectors(self) -> list[nn.Module]:
        """The connector; several where each feeds a decoder layer of its own (Granite 4)."""
        return list(self.connector) if isinstance(self.connector, nn.ModuleList) else [self.connector]


def model_parts(model: Any, connector: str | None = None) -> ModelParts:
    """Find the parts of `model`.

    Args:
        connector: path of the connector's module in `model`, for families that are not known here.

    Raises:
        UserError: the model has no vision encoder and connector, or no list of decoder layers, or has an encoder for
            text.
    """
    modules = dict(model.named_modules())
    kind = type(model).__name__
    if any(getattr(config, "is_encoder_decoder", False) for config in (model.config, model.config.get_text_config())):
        raise UserError(f"{kind} is an encoder-decoder: its visual tokens enter the encoder, never the decoder")
    decoder = model.get_decoder()
    embedding = model.get_input_embeddings()
    vision = _vision_encoder(model, modules, embedding)
    in_vision = {id(module) for module in vision.modules()} if vision is not None else set()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        layers = _longest_list(decoder, in_vision)
    if layers is None:
        raise UserError(f"{kind} has no list of decoder layers")
    in_layers = {id(module) for module in layers.modules()}
    bridge = _connector(model, modules, in_layers, connector)
    if bridge is None and (reason := REFUSED.get(model.config.model_type)):
        raise UserError(f"{kind} cannot be measured: {reason}")
    if bridge is None and vision is None:
        raise UserError(f"{kind} is a text-only model: it has no vision encoder, so there are no visual tokens")
    if bridge is None:
        raise UserError(f"{kind}: found no connector between vision and language; name its module with --connector")
    paths = {id(module): path for path, module in modules.items()}
    parts = {"embedding": embedding, "layers": layers, "vision": vision, "connector": bridge}
    names = {part: paths[id(module)] for part, module in parts.items() if module is not None}
    return ModelParts(embedding, decoder, layers, vision, bridge, image_token_id(model.config), names)


def image_token_id(config: Any) -> int | None:
    """Return the id of the image token in a config, whatever the field is called; None without one."""
    values = (getattr(config, name, None) for name in _IMAGE_TOKENS)
    return next((value for value in values if isinstance(value, int)), None)


def _vision_encoder(model: Any, modules: dict[str, nn.Module], embedding: nn.Module) -> nn.Module | None:
    """The image encoder. `get_encoder` returns the model itself, or None, where there is none."""
    encoder = model.get_encoder(modality="image")
    if encoder is None or any(module is embedding for module in encoder.modules()):
        paths = (path for name in _VISION_ENCODERS for path in modules if path.rpartition(".")[2] == name)
        return modules[first] if (first := next(paths, None)) else None
    return encoder


def _connector(model: Any, modules: dict[str, nn.Module], in_layers: set[int], path: str | None) -> nn.Module | None:
    """The module at `path`; else that of the model's family; else the shallowest with the name of any connector."""
    if path is not None:
        if path not in modules:
            raise UserError(f"--connector: the model has no module {path}")
        return modules[path]
    family = FAMILIES.get(model.config.model_type)
    others = (other.connector.rpartition(".")[2] for other in FAMILIES.values())
    for name in ([family.connector] if family else []) + [*dict.fromkeys(others), *_OTHER_CONNECTORS]:
        for place, module in modules.items():
            if f".{place}".endswith(f".{name}") and id(module) not in in_layers:
                return module
    return None


def _longest_list(root: nn.Module, excluded: set[int]) -> nn.ModuleList | None:
    """The longest list of modules that have children, wherever the decoder keeps its blocks."""
    lists = (
        module
        for module in root.modules()
        if isinstance(module, nn.ModuleList)
        and len(module)
        and id(module) not in excluded
        and any(module[0].children())
    )
    return max(lists, key=len, default=None)
