"""Finds the parts of any HuggingFace vision-language model: embeddings, decoder layers, vision encoder, connector.

The lookups are transformers' own (`get_decoder`, `get_encoder`); only the connector has no accessor, and is known by
the name of its attribute. There is no branch on a model's family.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from modeling_aligned_llava.errors import UserError


CONNECTORS = (  # by preference; the shallowest module of the first name that occurs
    *("multi_modal_projector", "mm_projector", "connector", "modality_projection", "merger", "embed_vision"),
    *("visual_embeddings_table", "vte", "mlp1", "aligner", "mlp_AR", "vision_projection", "vision_projector"),
    *("multimodal_projector", "image_projection", "vision_adapter", "visual_projection", "language_projection"),
)
IMAGE_TOKENS = (
    *("image_token_id", "image_token_index", "image_patch_id", "media_placeholder_token_id"),
    *("image_context_token_id", "img_context_token_id"),
)
VISION_ENCODERS = ("vision_tower", "visual", "vision_model", "vision_encoder", "image_tower", "visual_tokenizer")


@dataclass(frozen=True)
class Anatomy:
    """Modules of a model, and the id that stands for a visual token (None: the model has none)."""

    embedding: nn.Module
    decoder: nn.Module
    layers: nn.ModuleList
    vision: nn.Module | None
    connector: nn.Module
    image_token_id: int | None
    names: dict[str, str]


def anatomy(model: Any, connector: str | None = None) -> Anatomy:
    """The parts of `model`; `connector` names the connector's module where its name is unknown here.

    Raises:
        UserError: the model has no vision encoder and connector, or no list of decoder layers.
    """
    modules = dict(model.named_modules())
    kind = type(model).__name__
    decoder = model.get_decoder()
    embedding = model.get_input_embeddings()
    vision = _vision(model, modules, embedding)
    outside = {id(each) for each in vision.modules()} if vision is not None else set()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        layers = _longest_list(decoder, outside)
    if layers is None:
        raise UserError(f"{kind} has no list of decoder layers to look at")
    decoding = {id(each) for each in layers.modules()}
    found = _connector(modules, decoding, connector)
    if found is None and vision is None:
        raise UserError(f"{kind} is a text-only model: it has no vision encoder, so there are no visual tokens")
    if found is None:
        raise UserError(f"{kind}: found no connector between vision and language; name its module with --connector")
    paths = {id(module): path for path, module in modules.items()}
    parts = {"embedding": embedding, "layers": layers, "vision": vision, "connector": found}
    names = {part: paths[id(module)] for part, module in parts.items() if module is not None}
    return Anatomy(embedding, decoder, layers, vision, found, image_token_id(model.config), names)


def image_token_id(config: Any) -> int | None:
    """The id of the image token in a config, whatever the field is called; None without one."""
    values = (getattr(config, name, None) for name in IMAGE_TOKENS)
    return next((value for value in values if isinstance(value, int)), None)


def _vision(model: Any, modules: dict[str, nn.Module], embedding: nn.Module) -> nn.Module | None:
    """The image encoder; the accessor answers with the model itself where there is none."""
    found = model.get_encoder(modality="image")
    if any(each is embedding for each in found.modules()):
        paths = (path for name in VISION_ENCODERS for path in modules if path.rpartition(".")[2] == name)
        return modules[first] if (first := next(paths, None)) else None
    return found


def _connector(modules: dict[str, nn.Module], decoding: set[int], name: str | None) -> nn.Module | None:
    if name is not None:
        if name not in modules:
            raise UserError(f"--connector: the model has no module {name}")
        return modules[name]
    for leaf in CONNECTORS:
        for path, module in modules.items():
            if path.rpartition(".")[2] == leaf and id(module) not in decoding:
                return module
    return None


def _longest_list(root: nn.Module, outside: set[int]) -> nn.ModuleList | None:
    """The longest list of modules with parts of their own, wherever the blocks of the decoder are kept."""
    lists = (
        each
        for each in root.modules()
        if isinstance(each, nn.ModuleList) and len(each) and id(each) not in outside and any(each[0].children())
    )
    return max(lists, key=len, default=None)
