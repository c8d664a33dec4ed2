"""One function measures every family; its numbers are those of a plain float64 computation on stored tensors."""

import pytest
import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2Model

from modeling_aligned_llava.diagnostics.instruments.token_masks import find_tokens, visual_by_value
from modeling_aligned_llava.diagnostics.norm_profile.layer_measurement import measuring
from modeling_aligned_llava.diagnostics.norm_profile.rotation import QUANTITIES
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.forward_pass import watch_layers
from modeling_aligned_llava.inspection.model_parts import model_parts
from tests.modeling_aligned_llava.diagnostics.family_checkpoints import MEASURED, llava_siglip_qwen2
from tests.modeling_aligned_llava.tiny_families import tiny
from tests.modeling_aligned_llava.tiny_parts import IMAGE, TEXT, WIDTH


SCALES = {"llava_granite": 12.0}  # what the decoder multiplies its input by


def measure(model, *batches):
    with torch.no_grad(), measuring(model, model_parts(model)) as measurement:
        for inputs in batches:
            model(**inputs, use_cache=False)
    return measurement


def layer_inputs(model, inputs):
    """Layer 0's input and the connector's rows in one pass."""
    parts, states, rows = model_parts(model), [], []
    handle = parts.connector.register_forward_hook(
        lambda _, args, out: rows.extend(out if isinstance(out, (list, tuple)) else [out])
    )
    with torch.no_grad(), watch_layers(parts.layers[:1], lambda _, before, after: states.append(before)):
        model(**inputs, use_cache=False)
    handle.remove()
    return states[0], [row for row in rows if isinstance(row, torch.Tensor)]


@pytest.mark.parametrize("name", MEASURED)
def test_every_family_is_measured(name):
    model, inputs = tiny(MEASURED[name])
    by_id = inputs["input_ids"] == IMAGE
    measured = measure(model, inputs)
    layers = len(model_parts(model).layers)
    newlines = int(measured.layers["newline"].count[0, 0])
    assert newlines == (4 if name in ("llava_next", "llava_onevision") else 0)
    assert measured.stages["visual tokens at layer 0"].count == by_id.sum() - newlines
    for series in ("visual", "text"):
        norms = measured.layers[series]
        assert norms.count[QUANTITIES.index("norm")].tolist() == [int(norms.count[0, 0])] * (layers + 1)
        assert (norms.mean[QUANTITIES.index("norm")] > 0).all()
    assert measured.stages["connector input"].count > 0
    scale = SCALES.get(name, 1.0)
    assert measured.text_scale() == pytest.approx(scale)
    # the same positions are visual without the id
    states, rows = layer_inputs(model, inputs)
    by_value = visual_by_value(states if states.dim() == 3 else states[None], rows)
    indicators = 2 if name == "ovis2" else 0  # its <img> and </img> are rows of the visual vocabulary too
    assert (by_value & ~by_id).sum() == measured.layers["special"].count[0, 0] == indicators
    assert (by_id & ~by_value).sum() == (newlines if scale == 1 else by_id.sum())


class OriginalLlava(PreTrainedModel):
    """As the LLaVA repository does: the id -200, which is no row of the embeddings, is expanded inside the model."""

    config_class = Qwen2Config

    def __init__(self, config: Qwen2Config):
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.vision_tower = nn.Sequential(nn.Conv2d(3, 24, 7, 7), nn.Flatten(2))
        self.mm_projector = nn.Sequential(nn.Linear(24, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.lm_head = nn.Linear(WIDTH, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_decoder(self) -> nn.Module:
        return self.model

    def forward(self, input_ids, pixel_values, attention_mask=None, **kwargs):
        visual = self.mm_projector(self.vision_tower(pixel_values).transpose(1, 2))
        place = int((input_ids[0] == -200).nonzero())
        before, after = (self.model.embed_tokens(part) for part in (input_ids[:, :place], input_ids[:, place + 1 :]))
        states = self.model(inputs_embeds=torch.cat([before, visual, after], 1), use_cache=False)
        return self.lm_head(states.last_hidden_state)


def original_llava() -> tuple[PreTrainedModel, dict, int, int]:
    """Model, inputs, and the range of its visual tokens: the first position and the one after the last."""
    torch.manual_seed(0)
    ids = torch.tensor([[5, 6, 7, -200, 8, 9, 10, 11]])
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 28, 28)}
    return OriginalLlava(hf.Qwen2Config(**TEXT)).eval(), inputs, 3, 3 + 16


def test_visual_tokens_are_found_without_an_image_token_id():
    model, inputs, start, end = original_llava()
    assert model_parts(model).image_token_id is None
    states, rows = layer_inputs(model, inputs)
    masks = find_tokens(states, inputs["input_ids"], None, rows, None, frozenset({5}))
    assert masks["visual"].nonzero()[:, 1].tolist() == [*range(start, end)]
    assert masks["special"].nonzero().tolist() == [[0, 0]]
    measured = measure(model, inputs)
    assert measured.stages["visual tokens at layer 0"].count == 16
    assert measured.stages["visual tokens at layer 0"].mean == pytest.approx(
        measured.stages["connector output"].mean.item()
    )


def stored(model, batches):
    """Inputs and outputs of every layer, collected by hand: each [layers, 1, all tokens, D]."""
    states = []
    for inputs in batches:
        layers = []
        with torch.no_grad(), watch_layers(model_parts(model).layers, lambda _, *pair, into=layers: into.append(pair)):
            model(**inputs, use_cache=False)
        states.append([torch.stack(side).double() for side in zip(*layers, strict=True)])
    before, after = zip(*states, strict=True)
    return torch.cat(before, 2), torch.cat(after, 2)


@pytest.fixture(scope="module")
def image_batches():
    model, inputs = tiny("llava")
    generator = torch.Generator().manual_seed(3)
    batches = [{**inputs, "pixel_values": torch.randn(1, 3, 28, 28, generator=generator)} for _ in range(21)]
    return model, batches


def test_statistics_equal_a_float64_computation(image_batches):
    model, batches = image_batches
    before, after = stored(model, batches)
    measured = measure(model, *batches)
    visual = torch.cat([inputs["input_ids"] == IMAGE for inputs in batches], 1)
    cosine = (before * after).sum(-1) / (before.norm(dim=-1) * after.norm(dim=-1))
    expected = {"norm": before.norm(dim=-1), "cosine": cosine, "update": (after - before).norm(dim=-1)}
    for series, mask in (("visual", visual), ("text", ~visual)):
        for name, values in expected.items():
            values = values[:, mask]
            row = QUANTITIES.index(name)
            moments = measured.layers[series]
            torch.testing.assert_close(moments.mean[row, :2], values.mean(1), rtol=1e-12, atol=0)
            torch.testing.assert_close(moments.std[row, :2], values.std(1, correction=0), rtol=1e-12, atol=1e-12)
            median = values.abs().quantile(0.5, dim=1)
            torch.testing.assert_close(moments.quantile(0.5)[row, :2], median, rtol=0.05, atol=0)
    last = after[-1][visual].norm(dim=-1)
    assert measured.layers["visual"].mean[QUANTITIES.index("norm"), 2] == pytest.approx(last.mean().item(), rel=1e-12)


def test_sinks_are_a_series_of_their_own():
    model, inputs = tiny(llava_siglip_qwen2)
    with torch.no_grad():
        model.get_input_embeddings().weight[41, 3] = 5000.0  # "D", which the question has once
    measured = measure(model, inputs)
    assert measured.layers["sink"].count[0, 0] == 1
    assert measured.layers["sink"].mean[0, 0] == pytest.approx(5000, rel=1e-3)
    assert measured.layers["visual without sinks"].count[0, 0] == measured.layers["visual"].count[0, 0]


def test_text_with_a_massive_activation_in_any_layer_is_no_text():
    model, inputs = tiny(llava_siglip_qwen2)
    inputs["input_ids"][0, -1] = 99  # of which there is no other
    before = measure(model, inputs)
    layer = model.get_decoder().layers[0].mlp
    layer.register_forward_hook(lambda _, args, out: out.index_fill(1, torch.tensor([out.shape[1] - 1]), 1e5))
    after = measure(model, inputs)
    assert after.layers["text"].count[0].tolist() == (before.layers["text"].count[0] - 1).tolist()
    assert after.layers["text"].mean[0].max() < 100 < after.layers["sink"].mean[0].nan_to_num().max()


def test_a_decoder_with_an_encoder_of_its_own_is_refused():
    t5 = hf.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.Blip2Config(vision_config=sizes, qformer_config=sizes, text_config=t5.to_dict())
    with pytest.raises(UserError, match="Blip2ForConditionalGeneration is an encoder-decoder: its visual tokens"):
        model_parts(hf.Blip2ForConditionalGeneration(config))


def test_coherence_is_the_mean_cosine_of_rotations(image_batches):
    model, batches = image_batches
    before, after = stored(model, batches[:1])
    measured = measure(model, batches[0])
    update = after - before
    along = (update * before).sum(-1, keepdim=True) / before.square().sum(-1, keepdim=True) * before
    rotation = torch.nn.functional.normalize(update - along, dim=-1)[:, 0]  # (layers, tokens, D)
    visual = batches[0]["input_ids"][0] == IMAGE
    expected = (rotation[:, visual] @ rotation[:, ~visual].transpose(1, 2)).mean((1, 2))
    torch.testing.assert_close(measured.coherence[0], expected, rtol=1e-9, atol=1e-12)
