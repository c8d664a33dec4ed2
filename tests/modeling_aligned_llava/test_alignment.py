"""The norm after the connector of every supported family: norms at layer 0, gradients, generation, saving."""

import copy
import re

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM
from transformers.models.auto import modeling_auto

from modeling_aligned_llava import align, load_aligned
from modeling_aligned_llava.aligned_family import NORM
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import FAMILIES, REFUSED, model_parts
from modeling_aligned_llava.norm_alignment import target_gain
from tests import REPOSITORY
from tests.clone import changed_copy
from tests.modeling_aligned_llava.tiny_families import tiny
from tests.modeling_aligned_llava.tiny_parts import IMAGE, TEXT, WIDTH
from tests.one_line import one_line
from tests.pages import blocks


AUTO_CLASSES = {
    name: kind._model_mapping for name, kind in vars(modeling_auto).items() if name.startswith("AutoModel")
}
every_family = pytest.mark.parametrize("name", list(FAMILIES))


def norm_of(model):
    return model.base_model.get_submodule(FAMILIES[model.config.model_type].connector).get_submodule(NORM)


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


@torch.no_grad()
def layer_0_input(run, model):
    """What decoder layer 0 sees in the first forward pass of `run()`, [S, D]."""
    seen = []

    def see(layer, args, kwargs):
        seen.append((args[0] if args else kwargs["hidden_states"])[0])

    hook = model.get_decoder().layers[0].register_forward_pre_hook(see, with_kwargs=True)
    run()
    hook.remove()
    return seen[0]


def visual_tokens(run, model, inputs):
    """The rows of layer 0's input that came out of the connector: image positions but for the newline of tiles."""
    visual = layer_0_input(run, model)[inputs["input_ids"][0] == IMAGE]
    newline = getattr(model.base_model, "image_newline", None)
    return visual if newline is None else visual[(visual != newline).any(-1)]


def train_a_little(norm):
    with torch.no_grad():
        norm.weight.mul_(1 + 0.1 * torch.randn(WIDTH))
        norm.bias.normal_(std=0.01)


@every_family
def test_visual_tokens_reach_layer_0_at_the_norm_of_text(name):
    model, inputs = tiny(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    plain = visual_tokens(lambda: model(**inputs), model, inputs)
    assert align(model, method="norm") is model
    visual = visual_tokens(lambda: model(**inputs), model, inputs)
    text = layer_0_input(lambda: model(input_ids=torch.arange(3, IMAGE)[None]), model)
    mean = visual.norm(dim=-1).mean()
    assert plain.shape == visual.shape and not torch.allclose(plain.norm(dim=-1).mean(), mean, rtol=0.05)
    torch.testing.assert_close(visual.norm(dim=-1), mean.expand(len(visual)), rtol=0.01, atol=0)
    torch.testing.assert_close(mean, text.norm(dim=-1).mean(), rtol=0.01, atol=0)
    # in place: nothing else was touched, the checkpoint gained two tensors
    after = model.state_dict()
    connector = FAMILIES[name].connector
    assert after.keys() - before.keys() == {f"model.{connector}.{NORM}.{p}" for p in ("weight", "bias")}
    assert all(torch.equal(after[key], before[key]) for key in before)
    # the diagnostics find the connector that is aligned
    parts = model_parts(model)
    assert parts.connector is model.base_model.get_submodule(connector) and parts.image_token_id == IMAGE


@every_family
def test_gradients_pass_the_norm_to_the_vision_tower_and_are_compensated(name):
    grads, factor = {}, 0.0
    for method in ("norm", "norm-gwc"):
        model, inputs = tiny(name)
        align(model, method=method).train()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        tower = dict(model.get_encoder(modality="image").named_parameters())
        patches = [p for key, p in tower.items() if re.search(r"patch_(embed|conv)", key) and key.endswith("weight")]
        assert patches and all(p.grad.abs().max() > 0 for p in patches)
        assert norm_of(model).weight.grad.abs().min() > 0 and norm_of(model).bias.grad.abs().min() > 0
        connector = model.base_model.get_submodule(FAMILIES[name].connector)
        grads[method] = {key: p.grad for key, p in connector.named_parameters() if p.grad is not None}
        factor = 1 / norm_of(model).weight.detach().abs().mean()
    assert grads["norm"].keys() == grads["norm-gwc"].keys() and len(grads["norm"]) > 2
    for key, grad in grads["norm"].items():
        expected = grad if NORM in key else grad * factor
        torch.testing.assert_close(
            grads["norm-gwc"][key], expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item()
        )


@every_family
def test_generation_passes_the_norm(name):
    model, inputs = tiny(name)
    align(model)
    out = {}
    prefill = visual_tokens(
        lambda: out.update(ids=model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False)),
        model,
        inputs,
    )
    assert torch.equal(prefill, visual_tokens(lambda: model(**inputs), model, inputs))
    length = inputs["input_ids"].shape[1]
    assert out["ids"].shape == (1, length + 3)
    scores = logits(model, inputs)[0, -1]
    scores[model.config.get_text_config().eos_token_id] = -torch.inf
    assert out["ids"][0, length] == scores.argmax()


@every_family
def test_a_saved_folder_is_loaded_exactly_here_and_by_transformers(name, tmp_path):
    model, inputs = tiny(name)
    model.save_pretrained(tmp_path / "plain")
    train_a_little(norm_of(align(model)))
    model.save_pretrained(tmp_path)
    plain, aligned = (set(load_file(folder / "model.safetensors")) for folder in (tmp_path / "plain", tmp_path))
    assert len(aligned - plain) == 2 and all(NORM in added for added in aligned - plain)  # names as on the Hub
    again = load_aligned(tmp_path)
    assert type(again) is type(model) and not again.training
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    assert torch.equal(logits(again, inputs), logits(model, inputs))
    again = AutoModelForImageTextToText.from_pretrained(tmp_path, trust_remote_code=True, dtype=torch.bfloat16)
    assert type(again).__module__.startswith("transformers_modules.")
    assert norm_of(again).weight.dtype == torch.float32 and torch.equal(norm_of(again).weight, norm_of(model).weight)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path, trust_remote_code=True)
    assert torch.equal(logits(again, inputs), logits(model, inputs))
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load_aligned(tmp_path / "again"), inputs), logits(model, inputs))
    headless = AutoModel.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    with torch.no_grad():
        assert torch.equal(headless(**inputs).last_hidden_state, model.model(**inputs).last_hidden_state)


@every_family
def test_no_auto_class_builds_the_plain_model_from_a_saved_folder(name):
    model, _ = tiny(name)
    autos = {auto: table.get(type(model.config), None) for auto, table in AUTO_CLASSES.items() if table is not None}
    plain, headless = type(model), type(model.base_model)
    building = {auto: built for auto, built in autos.items() if built in (plain, headless)}
    align(model)
    assert {"AutoModel", "AutoModelForImageTextToText"} < building.keys() <= model.config.auto_map.keys()
    for auto, built in building.items():
        assert model.config.auto_map[auto] == f"aligned_family.Aligned{built.__name__}"


def test_a_model_without_head_is_named_for_no_auto_class_with_one():
    model, _ = tiny("gemma3")
    assert align(model.model).config.auto_map == {"AutoModel": "aligned_family.AlignedGemma3Model"}


def test_fields_differ_from_the_method_on_demand_and_are_saved(tmp_path):
    model, inputs = tiny("llava")
    plain = logits(model, inputs)
    align(copied := copy.deepcopy(model), "baseline")
    assert torch.equal(logits(copied, inputs), plain) and NORM not in " ".join(copied.state_dict())
    align(model, "norm-gwc", text_norm=0.5, target_scale=2.0, compensation_exponent=0.5)
    model.save_pretrained(tmp_path)
    for norm in (norm_of(model), norm_of(load_aligned(tmp_path))):
        assert torch.equal(norm.weight, torch.full((WIDTH,), target_gain(0.5, WIDTH, 2.0)))
        assert norm.compensation_exponent == 0.5


def test_a_base_model_without_head_is_served(tmp_path):
    model, inputs = tiny("qwen3_vl")
    base = align(model.model)
    base.save_pretrained(tmp_path)
    again = load_aligned(tmp_path)
    assert type(again) is type(base)
    with torch.no_grad():
        assert torch.equal(again(**inputs).last_hidden_state, base(**inputs).last_hidden_state)


def test_peft_trains_the_norm_in_full_beside_lora(tmp_path):
    model, inputs = tiny("qwen2_5_vl")
    lora = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=[NORM])
    tuned = get_peft_model(align(model), lora).train()
    tuned(**inputs, labels=inputs["input_ids"]).loss.backward()
    trained = {key: p for key, p in tuned.named_parameters() if p.requires_grad}
    assert sum(NORM in key for key in trained) == 2 and all(p.grad is not None for p in trained.values())
    torch.optim.SGD(trained.values(), lr=0.1).step()
    expected = logits(tuned.eval(), inputs)
    tuned.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(align(tiny("qwen2_5_vl")[0]), tmp_path / "adapter").eval()
    assert torch.equal(logits(again, inputs), expected)
    merged = again.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(logits(load_aligned(tmp_path / "merged"), inputs), logits(merged, inputs))


def test_a_copy_calls_its_own_norm_and_initialisation_leaves_it_alone():
    model, inputs = tiny("llava")
    align(model)
    before = logits(model, inputs)
    train_a_little(norm_of(other := copy.deepcopy(model)))
    assert torch.equal(logits(model, inputs), before) and not torch.equal(logits(other, inputs), before)
    trained = norm_of(other).weight.clone()
    other.init_weights()
    assert torch.equal(norm_of(other).weight, trained)


@pytest.mark.parametrize("model_type", list(REFUSED))
def test_what_cannot_be_served_is_refused_by_name_with_the_reason(model_type):
    assert model_type in CONFIG_MAPPING
    model, _ = tiny("llava")
    model.config.model_type = model_type
    with pytest.raises(UserError) as error:
        align(model)
    assert str(error.value) == f"align: {model_type} cannot be served: {REFUSED[model_type]}"


def test_a_wrong_model_or_field_gives_one_line_and_changes_nothing():
    text_only = LlamaForCausalLM(LlamaConfig(**TEXT))
    model, empty, meta = (tiny("llava")[0] for _ in range(3))
    meta.to("meta")
    torch.nn.init.zeros_(empty.get_input_embeddings().weight)
    before = model.state_dict().keys()
    for given, message, arguments in (
        (text_only, "align: llama is a text-only model: it has no visual tokens", {}),
        (torch.nn.Sequential(), "takes a transformers model, not a Sequential", {}),
        (model, "unknown method 'nrom'; known methods: baseline", {"method": "nrom"}),
        (model, "this target needs stream_norm", {"method": "norm-stream"}),
        (model, "unknown field 'eps'; fields of the norm: comp", {"eps": 1e-6}),
        (model, "target_scale must be a number above 0, not -1", {"target_scale": -1}),
        (model, "text_norm must be a number above 0 or null, not 0", {"text_norm": 0}),
        (meta, "embeddings are not in memory; pass text_norm", {}),
        (meta, "weights of the connector are not in memory", {"text_norm": 1.0}),
        (empty, "cannot measure the text norm", {}),
    ):
        with one_line(message):
            align(given, **arguments)
    assert model.state_dict().keys() == before and not hasattr(model.config, NORM)
    align(model)
    with one_line("this llava model is aligned already"):
        align(model)


def test_a_folder_that_cannot_be_loaded_gives_one_line(tmp_path):
    def refused(message, folder):
        with one_line(message):
            load_aligned(folder)

    plain, aligned = tmp_path / "plain", tmp_path / "aligned"
    model, _ = tiny("llava")
    model.save_pretrained(plain)
    align(model).save_pretrained(aligned)
    refused("cannot load", tmp_path / "absent")
    refused("cannot load", "no-owner/no-model")
    refused("was not saved from an aligned model", plain)
    weights = aligned / "model.safetensors"
    whole = weights.read_bytes()
    for content, message in (
        ((plain / "model.safetensors").read_bytes(), rf"lacks .*{NORM}\."),
        (whole[: len(whole) // 2], "cannot load"),
    ):
        weights.write_bytes(content)
        refused(message, aligned)
    weights.write_bytes((plain / "model.safetensors").read_bytes())
    with pytest.raises(OSError, match=rf"lacks the tensor .*{NORM}"):  # the code in the folder
        AutoModelForImageTextToText.from_pretrained(aligned, trust_remote_code=True)
    weights.write_bytes(whole)
    refused("LlavaForTelepathy", changed_copy(aligned, tmp_path / "other", architectures=["LlavaForTelepathy"]))


def test_the_page_shows_every_family_and_every_reason(capsys):
    shown = blocks(REPOSITORY / "docs/your_model.md", "python")
    (block,) = (code for code in shown if code.startswith("from modeling_aligned_llava.inspection"))
    exec(block)  # noqa: S102
    shown = capsys.readouterr().out
    for name, family in FAMILIES.items():
        assert name in shown and family.connector in shown and family.note in shown
    assert all(name in shown and reason in shown for name, reason in REFUSED.items())
