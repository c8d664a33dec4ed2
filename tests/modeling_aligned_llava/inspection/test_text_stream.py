"""The norm of text that enters a decoder layer, against transformers' own hidden states."""

import copy

import pytest
import torch
from transformers import AddedToken, AutoTokenizer

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration, align, mean_stream_norm
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.content_text import is_special, special_ids
from modeling_aligned_llava.inspection.model_parts import FAMILIES
from tests.conftest import TEXTS, tiny_tokenizer
from tests.modeling_aligned_llava.diagnostics.family_checkpoints import llava_granite
from tests.modeling_aligned_llava.tiny_families import tiny


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("baseline")).eval()


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return AutoTokenizer.from_pretrained(tiny_checkpoint("baseline"))


def states_of(model, tokenizer, text, layer):
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        return model(input_ids=ids, output_hidden_states=True).hidden_states[layer][0]


def test_it_is_the_mean_over_the_tokens_of_all_texts(model, tokenizer):
    norms = torch.cat([states_of(model, tokenizer, text, 1).norm(dim=-1) for text in TEXTS])
    assert mean_stream_norm(model, tokenizer, iter(TEXTS)) == pytest.approx(norms.mean().item(), rel=1e-6)
    # the hook is gone
    assert torch.equal(states_of(model, tokenizer, TEXTS[0], 1), states_of(model, tokenizer, TEXTS[0], 1))


def test_special_tokens_and_sinks_do_not_count(model, tokenizer):
    text = "<|endoftext|>two cats<|im_end|>"
    states = states_of(model, tokenizer, text, 1)
    assert mean_stream_norm(model, tokenizer, [text]) == pytest.approx(states[1:-1].norm(dim=-1).mean().item())
    embedding = model.get_input_embeddings().weight
    (row,) = tokenizer("w")["input_ids"]
    kept = embedding[row].clone()
    with torch.no_grad():
        embedding[row, 0] = 1e6
        states = states_of(model, tokenizer, text, 1)
        norm = mean_stream_norm(model, tokenizer, [text])
        embedding[row] = kept
    assert norm == pytest.approx(states[[1, *range(3, len(states) - 1)]].norm(dim=-1).mean().item())


def test_what_the_files_of_a_tokenizer_call_special_is_no_content(model, tokenizer):
    """Marks of chat formats, such as Llama 3's <|start_header_id|>, are in no list of special tokens."""
    tokenizer = copy.deepcopy(tokenizer)
    mark = AddedToken("<|start_header_id|>", special=True)
    tokenizer.add_tokens([mark, AddedToken("<think>", special=False)])
    number, think = tokenizer.convert_tokens_to_ids(["<|start_header_id|>", "<think>"])
    assert number not in tokenizer.all_special_ids
    special = special_ids(tokenizer, model.config)
    assert {number, model.config.image_token_id, *tokenizer.all_special_ids} <= special and think not in special
    text = "<|start_header_id|>two cats"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    assert is_special(ids, special)[0].tolist() == [True, *[False] * (ids.shape[1] - 1)]
    resized = copy.deepcopy(model)
    resized.resize_token_embeddings(len(tokenizer))
    with torch.no_grad():
        resized.get_input_embeddings().weight[number] *= 100
        states = resized(input_ids=ids, output_hidden_states=True).hidden_states[1][0]
    assert mean_stream_norm(resized, tokenizer, [text]) == pytest.approx(states[1:].norm(dim=-1).mean().item())


def test_a_layer_that_text_does_not_enter_is_refused(model, tokenizer):
    for layer in (0, 2):
        with pytest.raises(UserError, match=f"stream_layer {layer}: text enters the layers 1 to 1 of this decoder"):
            mean_stream_norm(model, tokenizer, TEXTS, layer)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_is_measured(family):
    model, _ = tiny(family)
    norm = mean_stream_norm(model, tiny_tokenizer(), ["abc"])
    align(model, "norm-stream", stream_norm=norm)
    assert model.config.alignment_norm["stream_norm"] == norm > 0


def test_a_decoder_that_scales_its_input_scales_visual_tokens_too():
    model, _ = tiny(llava_granite)
    tokenizer = tiny_tokenizer()
    entering = states_of(model, tokenizer, "abc", 1).norm(dim=-1).mean().item()
    assert mean_stream_norm(model, tokenizer, ["abc"]) == pytest.approx(entering / 12, rel=1e-6)
