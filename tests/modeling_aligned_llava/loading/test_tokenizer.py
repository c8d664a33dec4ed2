from transformers import AutoTokenizer

from modeling_aligned_llava.loading.tokenizer import SavedTokenizer


def test_the_saved_splitting_wins_over_the_model_types(tiny_backbones):
    """The tiny tokenizer knows no merges and does not normalise; Qwen2's own would turn the sign into one letter."""
    text = "fine A\u030a"
    saved, of_the_type = (kind.from_pretrained(tiny_backbones.qwen2) for kind in (SavedTokenizer, AutoTokenizer))
    assert saved.decode(saved.encode(text)) == text and of_the_type.encode(text) != saved.encode(text)
