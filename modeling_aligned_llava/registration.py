"""Registers the model with the Auto classes as soon as transformers is imported, not before.

transformers and torch cost seconds. Programs that only print help, check arguments or start workers import this
package too, and should not pay for a model they never load.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def register_with_auto_classes() -> None:
    """Make the Auto classes know `aligned_llava`, and `save_pretrained` copy the code beside the weights."""
    from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, AutoProcessor, LlavaProcessor

    from .configuration_aligned_llava import AlignedLlavaConfig
    from .modeling_aligned_llava import AlignedLlavaForConditionalGeneration, AlignedLlavaModel

    AutoConfig.register("aligned_llava", AlignedLlavaConfig)
    AutoModel.register(AlignedLlavaConfig, AlignedLlavaModel)
    AutoModelForImageTextToText.register(AlignedLlavaConfig, AlignedLlavaForConditionalGeneration)
    AutoProcessor.register(AlignedLlavaConfig, LlavaProcessor)
    AlignedLlavaConfig.register_for_auto_class()
    AlignedLlavaModel.register_for_auto_class("AutoModel")
    AlignedLlavaForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")


def register_when_transformers_is_imported() -> None:
    """Register now if transformers is there already, otherwise right after its import."""
    if "transformers" in sys.modules:
        register_with_auto_classes()
    else:
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Calls `register_with_auto_classes` once, when the import of transformers is complete.

    The first to import transformers may be one of the modules that registration needs; then it waits for that module.
    """

    triggers = (
        "transformers",
        f"{__package__}.configuration_aligned_llava",
        f"{__package__}.modeling_aligned_llava",
    )

    def __init__(self) -> None:
        self.looking, self.importing = False, 0

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self.looking or name not in self.triggers:
            return None
        self.looking = True  # the other finders are asked through the same door
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_then_register(module: ModuleType) -> None:
            self.importing += 1
            try:
                execute(module)
            finally:
                self.importing -= 1
            if self.importing == 0 and self in sys.meta_path:
                sys.meta_path.remove(self)
                register_with_auto_classes()

        loader.exec_module = execute_then_register
        return spec
