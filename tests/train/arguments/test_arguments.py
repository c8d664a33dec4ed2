"""Settings: every recipe parses, mistakes get one line."""

import re
from dataclasses import fields
from types import SimpleNamespace

import pytest
from trl import SFTConfig

from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY
from tests.one_line import one_line
from train.arguments import parse
from train.arguments.parse import accumulation_steps, parse_arguments
from train.arguments.sft_settings import REFUSED
from train.stage_folder import StageFolder


RECIPES = sorted((REPOSITORY / "configuration" / "train").glob("*/stage*.yaml"))
# Settings that do what TRL and transformers say.
ACTING = {
    *("output_dir", "num_train_epochs", "max_steps", "max_length", "seed", "full_determinism", "loss_type"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "average_tokens_across_devices"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "neftune_noise_alpha"),
    *("bf16", "fp16", "tf32", "use_cpu", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *("activation_checkpointing", "activation_checkpointing_kwargs", "activation_offloading"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "torch_empty_cache_steps"),
    *("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter", "log_on_each_node"),
    *("log_level", "log_level_replica", "report_to", "run_name", "project", "debug", "skip_memory_metrics"),
    *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
    *("save_strategy", "save_steps", "save_total_limit"),
    *("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
    *("dataloader_persistent_workers", "dataloader_multiprocessing_context", "dataloader_in_order"),
    "train_sampling_strategy",
    *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
    *("ddp_backend", "ddp_timeout", "local_rank", "fsdp", "fsdp_config", "deepspeed", "accelerator_config"),
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_parses(recipe):
    run, training = parse_arguments(["--config", str(recipe), "--method", "norm-gwc", "--bf16", "false"])
    assert (
        "norm-gwc/stage" in training.output_dir and "{" not in f"{training.output_dir}{run.model.model_name_or_path}"
    )
    assert training.max_grad_norm == 1.0 and training.warmup_steps == 0.03 and training.weight_decay == 0.0
    assert (
        training.gradient_accumulation_steps * training.per_device_train_batch_size
        == run.optimization.global_batch_size
    )
    assert (run.data.prompt_format == "plain") == ("stage1" in recipe.name)


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
    _, training = parse_arguments(arguments)
    assert training.bf16 is fast
    folder = StageFolder(str(training.output_dir))
    folder.record_settings({"bf16": not fast})
    assert parse_arguments(arguments)[1].bf16 is not fast  # a folder keeps the precision that it was started with


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
        # settings that contradict each other
        ({"eval_rows": 3}, "eval_rows and eval_strategy .* go together"),
        ({"clip_by_part": "true", "max_grad_norm": 0}, "clip_by_part needs max_grad_norm, the limit of each part"),
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
    ],
)
def test_what_deepspeed_cannot_do_is_one_line(stage_arguments, tmp_path, settings, message):
    run, training = parse.parse_arguments(stage_arguments(2, "norm", tmp_path, **settings))
    if "lora" in settings:
        training.deepspeed_plugin = SimpleNamespace(zero_stage=2)
        parse._check(run, training)
    training.deepspeed_plugin = SimpleNamespace(zero_stage=3)
    with one_line(message):
        parse._check(run, training)


@pytest.mark.parametrize("text", ["- a list", "learning_rates: {a: [", "\0", "env: [1]"])
def test_a_file_that_holds_no_settings_is_one_line(tmp_path, text):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(UserError, match=r"^settings: [^\n]+$"):
        parse_arguments(["--config", str(recipe), "--method", "norm"])


def test_accumulation_follows_from_the_world_size():
    assert accumulation_steps(256, 2, 64) == 2 and accumulation_steps(128, 1, 1) == 128
    with pytest.raises(UserError, match="128 is not a multiple of per_device_train_batch_size 64 x 4 processes"):
        accumulation_steps(128, 64, 4)


def test_each_setting_of_trl_acts_or_is_refused():
    names = {field.name for field in fields(SFTConfig) if field.init}
    assert names == ACTING | REFUSED.keys() and not ACTING & REFUSED.keys()


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("learning_rate", ["--learning_rate=1e-3"]),
        ("save_only_model", ["--save_only_model"]),
        ("remove_unused_columns", ["--no-remove-unused-columns"]),
        ("hub_token", ["--hub_token", "hf_x"]),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(stage_arguments, tmp_path, setting, given):
    with pytest.raises(UserError, match=f"^{re.escape(f'{setting}: {REFUSED[setting]}')}$"):
        parse_arguments([*stage_arguments(1, "norm", tmp_path), *given])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"{setting}: 1\n")
    with pytest.raises(UserError, match=f"^{setting}: "):
        parse_arguments(["--config", str(recipe)])


def test_help_shows_our_settings_in_groups(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    text = capsys.readouterr().out
    starts = [text.index(f"\n{group}:\n") for group in ("model", "data", "optimization", "monitoring")]
    assert starts == sorted(starts) and starts[-1] < text.index("--lr_scheduler_type")
    assert starts[3] < text.index("--eval_rows EVAL_ROWS") < text.index("\ntraining (TRL's SFTConfig):\n")
    assert "--learning_rates" in text and "--learning_rate " not in text and "--save_only_model" not in text
