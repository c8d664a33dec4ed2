"""Whole stages on tiny models: what is trained, what is written, and what is refused."""

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json
from modeling_aligned_llava.norm_alignment import target_gain
from tests.one_line import one_line
from tests.train.stage_results import lines, weights
from train.optimization.trainer import AlignedSFTTrainer
from train.stage import run_stage


@pytest.mark.parametrize("found", [(lambda: None, {}), (torch.optim.SGD, {"params": []})])
def test_an_optimizer_that_chooses_its_own_parameters_is_one_line(stage_arguments, tmp_path, monkeypatch, found):
    """Muon and GaLore."""
    monkeypatch.setattr(AlignedSFTTrainer, "get_optimizer_cls_and_kwargs", lambda *_: found)
    with one_line("^optim: adamw_torch_fused chooses its own parameters"):
        run_stage(stage_arguments(1, "norm", tmp_path))


def test_an_optimizer_whose_package_is_missing_is_one_line(stage_arguments, tmp_path):
    with one_line("^optim: .*lomo"):
        run_stage(stage_arguments(1, "norm", tmp_path, optim="lomo"))


def test_a_schedule_without_its_arguments_is_one_line(stage_arguments, tmp_path):
    with one_line("^lr_scheduler_type, lr_scheduler_kwargs: .*min_lr"):
        run_stage(stage_arguments(1, "norm", tmp_path, lr_scheduler_type="cosine_with_min_lr"))


def test_a_loss_that_trl_does_not_know_is_one_line(stage_arguments, tmp_path):
    with one_line("^settings: Invalid `loss_type` ce passed"):
        run_stage(stage_arguments(1, "norm", tmp_path, loss_type="ce"))


GAIN = "model.multi_modal_projector.norm.weight"
MODEL = {"config.json", "generation_config.json", "model.safetensors", "README.md"}
MODEL |= {"chat_template.jinja", "processor_config.json", "tokenizer.json", "tokenizer_config.json"}
CODE = {"configuration_aligned_llava.py", "hub_folder.py", "modeling_aligned_llava.py", "norm_alignment.py"}
RECORDS = {"gradients.jsonl", "log.jsonl", "probe.jsonl", "quarantine.jsonl"}
RECORDS |= {"norm_parameters.json", "settings.json", "training_complete.json"}


def test_final_folder_is_a_model_and_nothing_else(straight):
    for stage in ("stage1", "stage2"):
        folder = straight / stage
        assert {path.name for path in folder.iterdir() if "assembled" not in path.name} == MODEL | CODE | RECORDS
        assembled = straight / "stage1" / "assembled"
        for name in ("config.json", "generation_config.json", "chat_template.jinja", "processor_config.json"):
            assert (folder / name).read_text().strip() == (assembled / name).read_text().strip(), name
        assert AutoModelForImageTextToText.from_pretrained(folder).config.method == "norm-gwc"
        assert "{% generation" in AutoProcessor.from_pretrained(folder).chat_template.replace("{%-", "{%")


def test_every_step_is_logged_and_the_final_norm_is_recorded(straight):
    for stage in ("stage1", "stage2"):
        log = lines(straight / stage)
        assert [line["step"] for line in log] == [1, 2, 3, 4, 5, 6]
        assert all({"loss", "grad_norm", "learning_rate"} <= set(line) for line in log)
        record = read_json(straight / stage / "norm_parameters.json")
        gain = weights(straight / stage)[GAIN].double()
        assert record["gain"]["l2"] == gain.norm().item() and record["gain"]["mean_abs"] == gain.abs().mean().item()
        assert record["bias"]["mean_abs"] > 0 and record["method"] == "norm-gwc"


def test_method_of_the_checkpoint_must_be_the_method_asked_for(straight, stage_arguments, tmp_path):
    with pytest.raises(UserError, match=r"stage1 belongs to method norm-gwc, not to norm$"):
        run_stage(stage_arguments(2, "norm", tmp_path, model_name_or_path=straight / "stage1"))
    with pytest.raises(UserError, match=r"there is no checkpoint in .*stage1; run stage 1 first"):
        run_stage(stage_arguments(2, "norm", tmp_path))


def test_fields_replace_those_of_the_method_in_both_stages(train_stage, tmp_path):
    changed = {"norm_fields": '{"target_scale": 4.0}', "max_steps": 1, "save_steps": 1}
    first = train_stage(tmp_path, 1, "norm", **changed)
    config = read_json(first / "config.json")
    assert (config["method"], config["target_scale"], config["projector_norm"]) == (None, 4.0, "layernorm")
    gain = weights(first / "assembled")[GAIN]
    assert torch.equal(gain, torch.full((32,), target_gain(config["text_norm"], 32, 4.0)))
    with pytest.raises(UserError, match=r"was made with target_scale 4\.0, not 1\.0: give both stages the same"):
        train_stage(tmp_path, 2, "norm", model_name_or_path=first)
    train_stage(tmp_path, 2, "norm", model_name_or_path=first, **changed)


@pytest.mark.parametrize(("method", "sizes"), [("norm-stream", [32, 32]), ("norm-rms", [32])])
def test_other_methods_are_measured_and_train(train_stage, tmp_path, method, sizes):
    folder = train_stage(tmp_path, 1, method, max_steps=1, save_steps=1)
    config = read_json(folder / "config.json")
    assert (config["method"], config["stream_norm"] is not None) == (method, method == "norm-stream")
    norm = {name: tensor for name, tensor in weights(folder).items() if "projector.norm" in name}
    assert sorted(tensor.numel() for tensor in norm.values()) == sizes
    record = read_json(folder / "norm_parameters.json")
    assert (record["bias"] is None) == (len(sizes) < 2)


def test_micro_batches_of_sequential_steps_hold_rows_of_similar_length(straight, train_stage, tmp_path, monkeypatch):
    compute_loss, widths = AlignedSFTTrainer.compute_loss, []

    def spied(self, model, inputs, *args, **kwargs):
        widths.append(inputs["input_ids"].shape[1])
        return compute_loss(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(AlignedSFTTrainer, "compute_loss", spied)
    settings = {"train_sampling_strategy": "sequential", "model_name_or_path": straight / "stage1", "max_steps": 3}
    train_stage(tmp_path, 2, per_device_train_batch_size=2, **settings)
    steps = [widths[k : k + 4] for k in range(0, 12, 4)]
    assert all(step == sorted(step) and step[-1] > 2 * step[0] for step in steps)  # not grouped by length


@pytest.mark.slow
def test_compiled_steps_differ_only_by_rounding(train_stage, tmp_path):
    """Adam turns a rounding error in a near-zero gradient into a fraction of its step of 7e-3."""
    compiled = {"torch_compile": "true", "torch_compile_backend": "aot_eager"}
    other = weights(train_stage(tmp_path / "compiled", 1, max_steps=2, **compiled))
    for name, tensor in weights(train_stage(tmp_path / "plain", 1, max_steps=2)).items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=2e-5, msg=name)
