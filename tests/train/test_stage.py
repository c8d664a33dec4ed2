"""Whole stages on tiny models: what is trained, what is written, and what is refused."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.norm_alignment import target_gain
from train import sft
from train.data.quarantine import read_entries
from train.optimization.trainer import AlignedSFTTrainer
from train.stage import run_stage


SMALL_STEPS = {"learning_rates": '{"multi_modal_projector": 1e-3}', "max_steps": 3}


def weights(folder):
    return load_file(folder / "model.safetensors")


def logged(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_stage_one_trains_only_projector_and_norm(straight):
    before, after = weights(straight / "stage1" / "assembled"), weights(straight / "stage1")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "multi_modal_projector" in name} and len(changed) == 6


def test_stage_two_trains_everything_that_llava_reads(straight):
    before, after = weights(straight / "stage1"), weights(straight / "stage2")
    kept = {name for name in before if torch.equal(before[name], after[name])}
    # a key bias shifts all attention logits of a query alike: its gradient is zero up to rounding
    assert {name for name in kept if "k_proj.bias" not in name} == {
        "model.vision_tower.post_layernorm.weight",
        "model.vision_tower.post_layernorm.bias",
    }


def test_final_folder_is_a_model_and_nothing_else(straight):
    for stage in ("stage1", "stage2"):
        folder = straight / stage
        assert sorted(path.name for path in folder.iterdir() if "assembled" not in path.name) == [
            "README.md",
            "chat_template.jinja",
            "config.json",
            "configuration_aligned_llava.py",
            "generation_config.json",
            "gradients.jsonl",
            "hub_folder.py",
            "log.jsonl",
            "model.safetensors",
            "modeling_aligned_llava.py",
            "norm_alignment.py",
            "norm_parameters.json",
            "probe.jsonl",
            "processor_config.json",
            "quarantine.jsonl",
            "settings.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "training_complete.json",
        ]
        assembled = straight / "stage1" / "assembled"
        for name in ("config.json", "generation_config.json", "chat_template.jinja", "processor_config.json"):
            assert (folder / name).read_text().strip() == (assembled / name).read_text().strip(), name
        assert AutoModelForImageTextToText.from_pretrained(folder).config.method == "norm-gwc"
        assert "{% generation" in AutoProcessor.from_pretrained(folder).chat_template.replace("{%-", "{%")


def test_every_step_is_logged_and_the_final_norm_is_recorded(straight):
    for stage in ("stage1", "stage2"):
        lines = logged(straight / stage)
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert all({"loss", "grad_norm", "learning_rate"} <= set(line) for line in lines)
        record = json.loads((straight / stage / "norm_parameters.json").read_text())
        gain = weights(straight / stage)["model.multi_modal_projector.norm.weight"].double()
        assert record["gain"]["l2"] == gain.norm().item() and record["gain"]["mean_abs"] == gain.abs().mean().item()
        assert record["bias"]["mean_abs"] > 0 and record["method"] == "norm-gwc"


def test_method_of_the_checkpoint_must_be_the_method_asked_for(straight, stage_arguments, tmp_path):
    with pytest.raises(UserError, match=r"stage1 belongs to method norm-gwc, not to norm$"):
        run_stage(stage_arguments(2, "norm", tmp_path, model_name_or_path=straight / "stage1"))
    with pytest.raises(UserError, match=r"there is no checkpoint in .*stage1; run stage 1 first"):
        run_stage(stage_arguments(2, "norm", tmp_path))


def test_fields_replace_those_of_the_method_in_both_stages(stage_arguments, tmp_path):
    changed = {"norm_fields": '{"target_scale": 4.0}', "max_steps": 1, "save_steps": 1}
    run_stage(stage_arguments(1, "norm", tmp_path, **changed))
    config = json.loads((tmp_path / "norm" / "stage1" / "config.json").read_text())
    assert (config["method"], config["target_scale"], config["projector_norm"]) == (None, 4.0, "layernorm")
    gain = weights(tmp_path / "norm" / "stage1" / "assembled")["model.multi_modal_projector.norm.weight"]
    assert torch.equal(gain, torch.full((32,), target_gain(config["text_norm"], 32, 4.0)))
    with pytest.raises(UserError, match=r"was made with target_scale 4\.0, not 1\.0: give both stages the same"):
        run_stage(stage_arguments(2, "norm", tmp_path))
    run_stage(stage_arguments(2, "norm", tmp_path, **changed))


def test_a_fixed_factor_holds_visual_tokens_at_a_multiple_of_their_norm(stage_arguments, tmp_path):
    fields = '{"projector_init": "rescaled", "norm_target": "visual", "target_scale": 0.25}'
    run_stage(stage_arguments(1, "baseline", tmp_path, norm_fields=fields, max_steps=1, save_steps=1))
    assert json.loads((tmp_path / "baseline" / "stage1" / "config.json").read_text())["projector_scale"] == 0.25


def test_visual_tokens_skip_layers_in_training(stage_arguments, tmp_path):
    for layers in ([], ["0"]):
        words = stage_arguments(1, "norm", tmp_path / f"{len(layers)}", packed_rows=True, max_steps=2)
        run_stage([*words, *(["--bypassed_layers", *layers] if layers else [])])
    lines = [logged(tmp_path / name / "norm" / "stage1") for name in ("0", "1")]
    assert [line["loss"] for line in lines[0]] != [line["loss"] for line in lines[1]]
    (first, *_), (bypassed, *_) = (
        [json.loads(line) for line in (tmp_path / n / "norm" / "stage1" / "probe.jsonl").read_text().splitlines()]
        for n in ("0", "1")
    )
    assert bypassed["visual"]["cosine"][0] == pytest.approx(1.0, abs=1e-12) and first["visual"]["cosine"][0] < 1 - 1e-6
    assert bypassed["visual"]["norm"][0] == bypassed["visual"]["norm"][1]


def test_a_norm_stored_in_bfloat16_is_rounded_after_every_step(stage_arguments, tmp_path):
    run_stage(stage_arguments(1, "norm-default-init", tmp_path, norm_storage="bfloat16", max_steps=3))
    stored = weights(tmp_path / "norm-default-init" / "stage1")["model.multi_modal_projector.norm.weight"]
    assert stored.dtype == torch.float32 and torch.equal(stored, stored.bfloat16().float())
    run_stage(stage_arguments(1, "norm-default-init", tmp_path / "small", norm_storage="bfloat16", **SMALL_STEPS))
    stored = weights(tmp_path / "small" / "norm-default-init" / "stage1")["model.multi_modal_projector.norm.weight"]
    assert torch.equal(stored, torch.ones(32))  # steps of 1e-3 are below half of 1/256


def test_accumulation_does_not_change_the_step(stage_arguments, tmp_path):
    for rows in (8, 2):
        run_stage(stage_arguments(1, "norm", tmp_path / str(rows), per_device_train_batch_size=rows, max_steps=2))
    one, four = (weights(tmp_path / rows / "norm" / "stage1") for rows in ("8", "2"))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, four[name], rtol=0, atol=2e-5)


def test_the_loss_is_the_mean_over_labelled_tokens(straight, stage_arguments, tiny_data, tmp_path):
    """TRL's fused head at labelled positions only, compared with plain cross entropy."""
    seen = []
    original = AlignedSFTTrainer.compute_loss

    def record(self, model, inputs, **kwargs):
        loss = original(self, model, inputs, **kwargs)
        plain = {name: value for name, value in inputs.items() if name not in ("labels", "use_cache")}
        logits = model(**plain).logits[:, :-1].flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, inputs["labels"][:, 1:].flatten(), ignore_index=-100)
        seen.append((loss.item(), expected.item()))
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AlignedSFTTrainer, "compute_loss", record)
        run_stage(
            stage_arguments(
                2, "norm-gwc", tmp_path, model_name_or_path=straight / "stage1", max_steps=1, global_batch_size=4
            )
        )
    ((ours, expected),) = seen
    assert ours == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["baseline", "norm-gwc"])
def test_a_rate_of_its_own_for_the_norm_changes_no_bit(stage_arguments, tmp_path, method):
    """The recipe's two optimizer groups with the same rate, compared with one group for projector and norm."""
    run_stage(stage_arguments(1, method, tmp_path / "two"))
    run_stage(stage_arguments(1, method, tmp_path / "one", learning_rates='{"multi_modal_projector": 7.0e-3}'))
    one, two = (weights(tmp_path / name / method / "stage1") for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_too_many_bad_rows_end_the_command_with_one_line(stage_arguments, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data.json"
    data.write_text(json.dumps([{"id": "r1", "image": "gone.png", "conversations": []}]))
    arguments = stage_arguments(1, "norm", tmp_path, data_path=data)
    monkeypatch.setattr(sys, "argv", ["sft", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        sft.main()
    images = arguments[arguments.index("--image_folder") + 1]
    quarantine = tmp_path / "norm" / "stage1" / "quarantine.jsonl"
    assert exit_info.value.code == 1
    assert capsys.readouterr().err == (
        "error: 1 of 1 rows are damaged, more than the 0.10% of bad_rows_limit: 1 x there is no image file; "
        f"they are listed in {quarantine}\n"
    )
    (entry,) = read_entries(quarantine)
    assert entry[:5] == (str(data), 0, "r1", "there is no image file", f"{images}/gone.png")


@pytest.mark.parametrize(
    ("method", "sizes", "measured"),
    [
        ("norm-geomean", [32, 32], True),
        ("norm-stream", [32, 32], False),
        ("norm-scalar", [1], False),
        ("norm-fixed", [], False),
        ("projector-rescaled", [], True),
    ],
)
def test_other_methods_are_measured_and_train(stage_arguments, tmp_path, method, sizes, measured):
    run_stage(stage_arguments(1, method, tmp_path, max_steps=1, save_steps=1))
    folder = tmp_path / method / "stage1"
    config = json.loads((folder / "config.json").read_text())
    assert config["method"] == method and (config["visual_norm"] is not None) == measured
    assert (config["stream_norm"] is not None) == (method == "norm-stream")
    scale = config["text_norm"] / config["visual_norm"] if method == "projector-rescaled" else 1.0
    assert config["projector_scale"] == scale
    norm = {name: tensor for name, tensor in weights(folder).items() if "projector.norm" in name}
    assert sorted(tensor.numel() for tensor in norm.values()) == sizes
    record = json.loads((folder / "norm_parameters.json").read_text())
    assert (record["bias"] is None, record["gain"] is None) == (len(sizes) < 2, method == "projector-rescaled")


def test_micro_batches_of_sequential_steps_have_less_padding_and_the_same_loss(
    straight, stage_arguments, tmp_path, monkeypatch
):
    compute_loss, widths = AlignedSFTTrainer.compute_loss, []

    def spied(self, model, inputs, *args, **kwargs):
        widths.append(inputs["input_ids"].shape[1])
        return compute_loss(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(AlignedSFTTrainer, "compute_loss", spied)
    for rows in (8, 2):
        settings = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": rows, "max_steps": 3}
        first = {"model_name_or_path": straight / "stage1"}
        run_stage(stage_arguments(2, "norm-gwc", tmp_path / str(rows), **first, **settings))
    whole, micro = widths[:3], [widths[k : k + 4] for k in range(3, 15, 4)]
    assert [max(step) for step in micro] == whole and all(step == sorted(step) for step in micro)
    assert sum(map(sum, micro)) < 4 * sum(whole)
    whole, micro = (logged(tmp_path / str(rows) / "norm-gwc" / "stage2") for rows in (8, 2))
    assert [line["num_tokens"] for line in whole] == [line["num_tokens"] for line in micro]
    torch.testing.assert_close([line["loss"] for line in whole], [line["loss"] for line in micro])
