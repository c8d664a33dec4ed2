"""LoRA adapters: what they train, resuming bit by bit, and the merged model."""

import json

import pytest
import torch
from transformers import LlamaConfig

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY
from tests.modeling_aligned_llava.tiny_parts import IMAGE, TEXT, clip, model_of
from tests.train.stage_results import assert_same_weights, interrupted_after, weights
from train.optimization.lora import add_adapters, describe_adapters, merge_adapters, modules_beside
from train.optimization.parameter_groups import freeze, group_parameters
from train.stage import run_stage


RECIPE = REPOSITORY / "configuration" / "train" / "llama-3.2-3b" / "stage2_lora.yaml"
LORA = {"r": 4, "lora_alpha": 8, "target_modules": r".*language_model\.layers\..*\.(q|v)_proj"}


def lora_arguments(stage_arguments, root, checkpoint, method="norm-gwc", **settings):
    """Command line of the LoRA recipe of Llama-3.2-3B on tiny shapes."""
    recipe = {
        "config": RECIPE,
        "model_name_or_path": checkpoint,
        "lora": json.dumps(LORA),
        "bf16": "false",
        "micro_batch_tokens": 0,
    }
    workers = {"dataloader_num_workers": 0, "dataloader_pin_memory": "false"}
    return stage_arguments(2, method, root, **(recipe | workers | settings))


def test_adapters_resume_bit_by_bit(straight, stage_arguments, tmp_path):
    run_stage(lora_arguments(stage_arguments, tmp_path / "straight", straight / "stage1"))
    arguments = lora_arguments(stage_arguments, tmp_path / "stopped", straight / "stage1")
    with interrupted_after(4):
        run_stage(arguments)
    run_stage(arguments)
    assert_same_weights(*(tmp_path / name / "norm-gwc" / "stage2" for name in ("stopped", "straight")))


def test_with_bfloat16_only_frozen_matrices_are_rounded(straight, stage_arguments, tmp_path):
    rates = {"learning_rates": '{"lora_": 1e-3, "multi_modal_projector": 1e-30}', "warmup_steps": 0}
    settings = {"max_steps": 1, "use_cpu": "true", "bf16": "true", "save_dtype": "float32", **rates}
    with pytest.raises(UserError, match="multi_modal_projector should train and has not moved in 1 steps"):
        run_stage(lora_arguments(stage_arguments, tmp_path, straight / "stage1", **settings))
    before, after = weights(straight / "stage1"), weights(tmp_path / "norm-gwc" / "stage2")
    for name, tensor in before.items():
        if "projector" in name or tensor.dim() == 1:
            assert torch.equal(tensor, after[name])
        elif "q_proj" not in name and "v_proj" not in name:
            assert torch.equal(tensor.bfloat16().float(), after[name])


def test_only_adapted_layers_are_widened_to_be_merged(tiny_checkpoint):
    """The whole model in float32 would not fit where the run did."""
    folder = tiny_checkpoint("norm-gwc")
    model = AlignedLlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    adapters = add_adapters(model, LORA, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(parameter)
    merge_adapters(adapters, torch.float32)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    adapted = {name for name, parameter in after.items() if not torch.equal(parameter, before[name])}
    assert len(adapted) == 4 and all("q_proj.weight" in name or "v_proj.weight" in name for name in adapted)
    for name, parameter in after.items():
        layer_adapted = name.replace("bias", "weight") in adapted
        assert parameter.dtype == (torch.float32 if layer_adapted else before[name].dtype), name
    assert {parameter.dtype for name, parameter in before.items() if "norm" not in name} == {torch.bfloat16}


@pytest.mark.parametrize(("lora", "message"), [({"rank": 4}, "lora: .*rank"), ({"target_modules": "x"}, "lora: .*x")])
def test_wrong_adapter_settings_are_one_line(stage_arguments, straight, tmp_path, lora, message):
    with pytest.raises(UserError, match=message):
        run_stage(lora_arguments(stage_arguments, tmp_path, straight / "stage1", lora=json.dumps(lora)))


def tiny_llava(tied=False):
    decoder = LlamaConfig(**TEXT, tie_word_embeddings=tied)
    return model_of("Llava", clip(), decoder, image_token_index=IMAGE, tie_word_embeddings=tied)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save: use learning_rates to train a part in full"),
        ({"trainable_token_indices": [4]}, "trainable_token_indices: use learning_rates"),
        ({"bias": "all"}, "bias: use learning_rates to train biases"),
        ({"layers_to_transform": [0]}, "layers_to_transform: use a regular expression as target_modules"),
        ({"loftq_config": {}}, "loftq_config: does not act here; settings: r, lora_alpha,"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: one of True, False, gaussian, orthogonal"),
        ({"target_modules": ["q_proj", "lm_head"]}, "an adapter on lm_head would never be trained"),
        ({"target_modules": ["q_proj", "qkv"]}, "target_modules: the decoder has no layer qkv"),
        ({"target_modules": ["fc1"]}, "target_modules: the decoder has no layer fc1"),  # the tower has
        ({"rank_pattern": {"k_proj": 8}, "target_modules": ["q_proj"]}, "no adapted layer is called k_proj"),
        ({"exclude_modules": ["vision_tower"]}, "exclude_modules: no layer that would be adapted has such a name"),
        ({"rank_pattern": ["q_proj"]}, "'list' object has no attribute 'keys'"),
        ({"lora_bias": True}, "Impossible to merge LoRA with `lora_bias=True`"),
    ],
)
def test_adapters_that_would_not_act_or_could_not_be_merged_are_refused(lora, message):
    with pytest.raises(UserError, match=f"lora: .*{message}"):
        add_adapters(tiny_llava(), {"r": 2, **lora}, seed=0)


def test_tied_embeddings_take_no_adapter():
    add_adapters(tiny_llava(), {"r": 2, "target_modules": ["embed_tokens"]}, seed=0)
    with pytest.raises(UserError, match="embed_tokens is tied to the head"):
        add_adapters(tiny_llava(tied=True), {"r": 2, "target_modules": ["embed_tokens"]}, seed=0)


def test_tied_embeddings_in_full_are_not_kept_beside_adapters():
    for tied in (False, True):
        model = tiny_llava(tied)
        add_adapters(model, {"r": 2, "target_modules": ["q_proj"]}, seed=0)
        rates = {"lora": 1e-3, "embed_tokens": 1e-3, "projector": 1e-3}
        freeze(model, group_parameters(model, rates, ["vision", "language"]))
        describe_adapters(model, ["vision", "language"])
        if not tied:
            assert modules_beside(model) == ["model.multi_modal_projector", "model.language_model.embed_tokens"]
    with pytest.raises(UserError, match="embeddings trained in full would load without the head tied to them"):
        describe_adapters(model, ["vision", "language"], merged=False)


def test_names_mean_layers_of_the_decoder_and_a_regular_expression_any():
    """The tower too has a q_proj."""
    for targets, count in (("all-linear", 14), (["q_proj", "v_proj"], 4), (["layers.1.self_attn.q_proj"], 1)):
        model = tiny_llava()
        add_adapters(model, {"r": 2, "target_modules": targets}, seed=0)
        assert describe_adapters(model, ["vision", "language"]) == f"lora: adapters in {count} layers of language"
    model = tiny_llava()
    add_adapters(model, {"r": 2, "target_modules": r".*\.q_proj"}, seed=0)
    assert describe_adapters(model, []) == "lora: adapters in 2 layers of vision, 2 layers of language"
    with pytest.raises(UserError, match="target_modules reaches vision, which frozen names"):
        describe_adapters(model, ["vision", "language"])
    freeze(model, group_parameters(model, {"projector": 1e-3}, ["."]))
    with pytest.raises(UserError, match=r"frozen matches .*\.lora_A\.default\.weight, which would not be trained"):
        describe_adapters(model, ["."])
