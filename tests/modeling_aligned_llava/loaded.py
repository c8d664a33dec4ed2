from modeling_aligned_llava import AlignedLlavaForConditionalGeneration


def load(folder, **kwargs) -> AlignedLlavaForConditionalGeneration:
    """The model of a folder, in eval mode."""
    return AlignedLlavaForConditionalGeneration.from_pretrained(folder, **kwargs).eval()
