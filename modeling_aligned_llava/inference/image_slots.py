"""What a processor writes in place of the images of a prompt: their visual tokens, known from their sizes alone."""

from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from modeling_aligned_llava.errors import errors_named


Size = tuple[int, int]  # width and height of an image
KEPT = 1024  # combinations of sizes; each can be 200 kB of text


@dataclass
class ImageSlots:
    """Write the visual tokens of images into prompts; combinations of sizes are tried on blank images, and kept.

    Args:
        processor: of any vision-language model of transformers.
    """

    processor: Any
    _written: dict[tuple[Size, ...], list[str]] = field(default_factory=dict, repr=False)

    def fill(self, prompt: str, sizes: tuple[Size, ...]) -> str:
        """A prompt with the visual tokens of its images, as the tokenizer gets it.

        Raises:
            UserError: the processor does not tell what it writes.
            Exception: it raises its own for images that it does not take.
        """
        if not sizes:
            return prompt
        before, *after = prompt.split(self.processor.image_token)
        return before + "".join(slot + text for slot, text in zip(self.written(sizes), after, strict=True))

    def written(self, sizes: tuple[Size, ...]) -> list[str]:
        """What is written for each image of a prompt; errors as of `fill`."""
        if sizes not in self._written:
            text, images = self.processor.image_token * len(sizes), [Image.new("RGB", size) for size in sizes]
            with errors_named("its processor does not tell the visual tokens of an image", KeyError, TypeError):
                made = self.processor(
                    text=[text], images=[images], return_tensors="pt", return_text_replacement_offsets=True
                )
                self._written[sizes] = [slot["replacement"] for slot in made["text_replacement_offsets"][0]]
            if len(self._written) > KEPT:
                del self._written[next(iter(self._written))]
        return self._written[sizes]
