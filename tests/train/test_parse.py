"""Settings: precision, and mistakes that get one line."""

import re
from types import SimpleNamespace

import pytest
import yaml

from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY
from tests.one_line import one_line
from train import parse as parsing
from train.parse import parse_settings
from train.refused import REFUSED
from train.settings import read_settings
from train.stage_folder import StageFolder


def parse_arguments(words):
    return parse_settings(read_settings(words))


@pytest.mark.parametrize(
    ("cpu", "fast"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True, "amx_bf16": False}, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, False),
        ({"architecture": "arm64"}, False),
    ],
)
def test_automatic_precision_is_bfloat16_where_it_is_fast(monkeypatch, stage_arguments, tmp_path, cpu, fast):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: cpu)
    arguments = stage_arguments(1, "norm", tmp_path, bf16="auto")
    training = parse_arguments(arguments).training
    assert training.bf16 is fast
    folder = StageFolder(str(training.output_dir))
    folder.begin({"bf16": not fast})
    assert (
        parse_arguments(arguments).training.bf16 is not fast
    )  # a folder keeps the precision that it was started with


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("global_batch_size", [16], r"global_batch_size must be a whole number, not \[16\]"),
        ("eval_rows", {"a": 1}, "eval_rows must be a whole number, not {'a': 1}"),
        ("per_device_train_batch_size", [16], "settings: "),
    ],
)
def test_a_value_of_another_kind_in_a_recipe_is_one_line(tmp_path, name, value, message):
    values = yaml.safe_load((REPOSITORY / "configuration/train/tinyworld/stage2.yaml").read_text()) | {name: value}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    with one_line(message):
        parse_arguments(["--config", str(tmp_path / "recipe.yaml"), "--method", "norm"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "nrom"}, "unknown method 'nrom'; known methods: baseline"),
        ({"config": "nowhere.yaml"}, "--config: there is no file nowhere.yaml"),
        ({"prompt_format": "fancy"}, "prompt_format must be plain or chat, not 'fancy'"),
        ({"global_batch_size": 9}, "global_batch_size 9 is not a multiple of per_device_train_batch_size 4 x 1"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be above 0, not 0"),
        ({"learning_rates": '{"(": 1e-3}'}, r"learning_rates, frozen: '\(' is not a regular expression"),
        ({"learning_rates": '{"a": NaN}'}, "learning_rates: the rate of 'a' must be a number from 0, not nan"),
        ({"learning_rates": '{"a": [1]}'}, r"learning_rates: the rate of 'a' must be a number from 0, not \[1\]"),
        ({"learning_rates": "{a"}, "learning_rates: '{a' is not JSON"),
        ({"learning_rates": "{}"}, "learning_rates must be {regex: rate}, and not empty"),
        ({"norm_fields": "[1]"}, r"norm_fields must be a JSON object, not \[1\]"),
        ({"norm_fields": '{"scale": 1}'}, "norm_fields of norm: unknown field 'scale'; fields: "),
        ({"norm_fields": '{"text_norm": 1}'}, "norm_fields of norm: unknown field 'text_norm'"),
        ({"norm_fields": '{"target_scale": 0}'}, "norm_fields of norm: target_scale must be a number above 0, not 0"),
        ({"report_to": "coment_ml"}, "settings: coment_ml is not supported, only"),
        # settings that contradict each other
        ({"eval_rows": 3}, "eval_rows and eval_strategy .* go together"),
        ({"clip_by_part": "true", "max_grad_norm": 0}, "clip_by_part needs max_grad_norm, the limit of each part"),
        (
            {"eval_rows": 3, "eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau"},
            "lr_scheduler_type: reduce_lr_on_plateau would keep the best weights",
        ),
        ({"save_strategy": "best"}, "save_strategy: best would leave nothing to continue from"),
    ],
)
def test_wrong_settings_are_one_line(stage_arguments, tmp_path, change, message):
    with one_line(message):
        parse_arguments(stage_arguments(1, **{"method": "norm", "root": tmp_path, **change}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_by_part": "true"}, "clip_by_part: DeepSpeed clips the whole gradient by itself"),
        ({"max_skipped_steps": 2}, "max_skipped_steps: DeepSpeed takes a step before it can be checked"),
        ({"lora": '{"r": 4, "target_modules": ["q_proj"]}'}, "^lora: ZeRO-3 shards the weights"),
        ({}, "^deepspeed: its scheduler would have one rate for all parameters"),
    ],
)
def test_what_deepspeed_cannot_do_is_one_line(stage_arguments, tmp_path, settings, message):
    parsed = parse_arguments(stage_arguments(2, "norm", tmp_path, **settings))
    training = parsed.training
    if "lora" in settings:
        training.deepspeed_plugin = SimpleNamespace(zero_stage=2)
        parsing._check(parsed)
    training.deepspeed_plugin = SimpleNamespace(zero_stage=3, deepspeed_config={"scheduler": {"type": "WarmupLR"}})
    with one_line(message):
        parsing._check(parsed)


def test_the_settings_decide_the_precision_whatever_accelerate_is_configured_with(
    stage_arguments, tmp_path, monkeypatch
):
    for bf16, expected in (("false", "no"), ("true", "bf16")):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
        assert parse_arguments(stage_arguments(1, "norm", tmp_path, bf16=bf16)).training.mixed_precision == expected


def test_a_chat_template_is_not_given_to_a_model_that_has_one(stage_arguments, tmp_path):
    with one_line("chat_template is for stage 1: save the processor of model_name_or_path with another one"):
        parse_arguments(stage_arguments(2, "norm", tmp_path, chat_template="qwen2_5"))


@pytest.mark.parametrize("text", ["- a list", "learning_rates: {a: [", "\0", "env: [1]"])
def test_a_file_that_holds_no_settings_is_one_line(tmp_path, text):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(UserError, match=r"^settings: [^\n]+$"):
        parse_arguments(["--config", str(recipe), "--method", "norm"])


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("learning_rate", ["--learning_rate=1e-3"]),
        ("save_only_model", ["--save_only_model"]),
        ("remove_unused_columns", ["--no-remove-unused-columns"]),
        ("hub_token", ["--hub_token", "hf_x"]),
        ("fp16", ["--fp16", "true"]),
        ("activation_checkpointing", ["--activation_checkpointing", "true"]),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(stage_arguments, tmp_path, setting, given):
    with pytest.raises(UserError, match=f"^{re.escape(f'{setting}: {REFUSED[setting]}')}$"):
        parse_arguments([*stage_arguments(1, "norm", tmp_path), *given])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"{setting}: 1\n")
    with pytest.raises(UserError, match=f"^{setting}: "):
        parse_arguments(["--config", str(recipe)])
