"""Norms and cosines by layer and modality against hidden states collected by hand."""

from itertools import pairwise

import pytest
import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.inspection.content_text import sinks
from modeling_aligned_llava.inspection.layer_probe import probe_layers
from tests.one_line import one_line


@pytest.mark.parametrize("decoder", ["qwen2", "llama"])
def test_profile_equals_the_hidden_states(tiny_checkpoint, decoder):
    model = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("norm-gwc", decoder)).eval()
    ids = torch.randint(5, 200, (3, 16), generator=torch.Generator().manual_seed(0))
    ids[:2, 3:7] = model.config.image_token_id
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(2, 3, 28, 28)}
    last = []
    handle = model.get_decoder().layers[-1].register_forward_hook(lambda m, a, out: last.append(out))
    with torch.no_grad(), probe_layers(model) as profile:
        states = list(model(**batch, output_hidden_states=True).hidden_states)
        model(**batch)  # a second batch joins the mean
    handle.remove()
    states[-1] = last[0]  # hidden_states ends with what the final norm made of it
    records = profile.records()
    visual = (ids == model.config.image_token_id) & mask.bool()
    for name, where in (("visual", visual), ("text", ~visual & mask.bool())):
        assert records[name]["tokens"] == 2 * where.sum()
        norms = [state[where].double().norm(dim=-1).mean().item() for state in states]
        assert records[name]["norm"] == pytest.approx(norms, rel=1e-5)
        pairs = pairwise(states)
        cosines = [
            torch.cosine_similarity(a[where].double(), b[where].double(), dim=-1).mean().item() for a, b in pairs
        ]
        assert records[name]["cosine"] == pytest.approx(cosines, rel=1e-9)
    with torch.no_grad():
        model(**batch)  # outside the block nothing is counted
    assert profile.records() == records


def test_special_tokens_and_sinks_do_not_count_as_text(tiny_checkpoint):
    model = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("norm")).eval()
    ids = torch.tensor([[5, 9, 6, 7, 8, 9, 30]])
    with torch.no_grad():
        model.get_input_embeddings().weight[30, 0] = 1e6  # a massive activation from layer 0 on
        states = model(input_ids=ids, output_hidden_states=True).hidden_states[:-1]
        with probe_layers(model, frozenset([9])) as profile:
            model(input_ids=ids)
    (text,) = profile.records().values()
    content = [0, 2, 3, 4]
    assert text["tokens"] == 4
    norms = [state[0, content].norm(dim=-1).mean().item() for state in states]
    assert text["norm"][:-1] == pytest.approx(norms, rel=1e-6)


def test_a_channel_that_is_massive_in_every_token_makes_no_sinks():
    states = torch.randn(2, 30, 64, generator=torch.Generator().manual_seed(0))
    states[..., 7] = 2000.0  # as in Gemma 3
    assert not sinks(states).any()
    states[1, 4, 9] = 20000.0
    assert sinks(states).nonzero().tolist() == [[1, 4]]


def test_states_that_are_not_finite_are_one_line(tiny_checkpoint):
    model = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("norm")).eval()
    model.get_decoder().layers[0].mlp.down_proj.weight.data.fill_(torch.inf)
    with one_line("states at decoder layer 1 are not finite in float32"), torch.no_grad(), probe_layers(model):
        model(input_ids=torch.tensor([[5, 6]]))


def test_a_model_without_visual_tokens_is_refused(tiny_backbones):
    from transformers import AutoModelForCausalLM

    with one_line("Qwen2ForCausalLM is a text-only model"):
        with probe_layers(AutoModelForCausalLM.from_pretrained(tiny_backbones.qwen2)):
            pass
