"""Whole stages on tiny models: what is trained, what is written, resuming, and one-line errors."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY
from train import sft
from train.arguments import accumulation_steps, parse_arguments
from train.data.quarantine import read_entries
from train.monitoring.log import JsonLines
from train.optimization.parameter_groups import group_parameters
from train.optimization.trainer import AlignedSFTTrainer
from train.stage import run_stage
from train.stage_folder import StageFolder


CONFIGURATION = REPOSITORY / "configuration" / "train"
RECIPES = sorted(CONFIGURATION.glob("*/stage*.yaml"))


def weights(folder):
    return load_file(folder / "model.safetensors")


def logged(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """Both stages of norm-gwc, straight; made by the first test that asks."""
    return tmp_path_factory.mktemp("straight")


@pytest.fixture
def straight(trained, stage_arguments):
    for stage in (1, 2):
        if not StageFolder(trained / "norm-gwc" / f"stage{stage}").is_complete():
            run_stage(stage_arguments(stage, "norm-gwc", trained))
    return trained / "norm-gwc"


def test_stage_one_trains_projector_and_norm_alone(straight):
    before, after = weights(straight / "stage1" / "assembled"), weights(straight / "stage1")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "multi_modal_projector" in name} and len(changed) == 6


def test_stage_two_trains_everything_that_is_used(straight):
    before, after = weights(straight / "stage1"), weights(straight / "stage2")
    kept = {name for name in before if torch.equal(before[name], after[name])}
    # a key bias shifts every attention logit of a query alike: its gradient is zero up to rounding
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


def test_log_and_norm_parameters(straight):
    for stage in ("stage1", "stage2"):
        lines = logged(straight / stage)
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert all({"loss", "grad_norm", "learning_rate"} <= set(line) for line in lines)
        record = json.loads((straight / stage / "norm_parameters.json").read_text())
        gain = weights(straight / stage)["model.multi_modal_projector.norm.weight"].double()
        assert record["gain"]["l2"] == gain.norm().item() and record["gain"]["mean_abs"] == gain.abs().mean().item()
        assert record["bias"]["mean_abs"] > 0 and record["method"] == "norm-gwc"


class Killed(BaseException):
    """Stands for a SIGKILL: nothing catches it."""


@pytest.mark.parametrize(("stage", "step", "torn"), [(1, 5, False), (2, 3, False), (2, 6, True)])
def test_killed_and_started_again_equals_a_straight_run(
    straight, stage_arguments, tmp_path, monkeypatch, stage, step, torn
):
    arguments = stage_arguments(
        stage, "norm-gwc", tmp_path, **({} if stage == 1 else {"model_name_or_path": straight / "stage1"})
    )
    folder = tmp_path / "norm-gwc" / f"stage{stage}"

    def kill(*_, **__):
        raise Killed

    save = AlignedSFTTrainer._save_rng_state
    with monkeypatch.context() as patch, pytest.raises(Killed):
        if torn:  # killed while the checkpoint is being written
            patch.setattr(
                AlignedSFTTrainer,
                "_save_rng_state",
                lambda s, *a: kill() if s.state.global_step == step else save(s, *a),
            )
        else:
            patch.setattr(
                JsonLines, "on_step_end", lambda s, a, state, c, **_: kill() if state.global_step == step else None
            )
        run_stage(arguments)
    assert (folder / f"checkpoint-{step}").exists() == torn
    run_stage(arguments)
    straight_weights = weights(straight / f"stage{stage}")
    assert all(torch.equal(tensor, straight_weights[name]) for name, tensor in weights(folder).items())
    for ours, theirs in zip(logged(folder), logged(straight / f"stage{stage}"), strict=True):
        assert (ours["step"], ours["loss"], ours["grad_norm"]) == (theirs["step"], theirs["loss"], theirs["grad_norm"])


def test_a_finished_stage_is_skipped_and_other_settings_are_refused(straight, stage_arguments, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in (straight / "stage2").iterdir()}
    arguments = stage_arguments(2, "norm-gwc", straight.parent)
    monkeypatch.setattr(sys, "argv", ["sft", *arguments])
    monkeypatch.setattr("train.stage.run_stage", lambda argv: pytest.fail("started"))
    sft.main()
    assert "stage2: already done" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (straight / "stage2").iterdir()}
    with pytest.raises(UserError, match=r"was started with other settings .max_steps was 6, is 7.: remove it"):
        run_stage([*arguments, "--max_steps", "7"])


def test_method_of_the_checkpoint_must_be_the_method_asked_for(straight, stage_arguments, tmp_path):
    with pytest.raises(UserError, match=r"stage1 belongs to method norm-gwc, not to norm$"):
        run_stage(stage_arguments(2, "norm", tmp_path, model_name_or_path=straight / "stage1"))
    with pytest.raises(UserError, match=r"there is no checkpoint in .*stage1; run stage 1 first"):
        run_stage(stage_arguments(2, "norm", tmp_path))


def test_accumulation_does_not_change_the_step(stage_arguments, tmp_path):
    for rows in (8, 2):
        run_stage(stage_arguments(1, "norm", tmp_path / str(rows), per_device_train_batch_size=rows, max_steps=2))
    one, four = (weights(tmp_path / rows / "norm" / "stage1") for rows in ("8", "2"))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, four[name], rtol=0, atol=2e-5)


def test_the_loss_is_the_mean_over_labelled_tokens(straight, stage_arguments, tiny_data, tmp_path):
    """TRL's fused head, told to score labelled positions only, against plain cross entropy."""
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


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_parses(recipe):
    run, training = parse_arguments(["--config", str(recipe), "--method", "norm-gwc", "--bf16", "false"])
    assert "norm-gwc/stage" in training.output_dir and "{" not in f"{training.output_dir}{run.model_name_or_path}"
    assert training.max_grad_norm == 1.0 and training.warmup_steps == 0.03 and training.weight_decay == 0.0
    assert training.gradient_accumulation_steps * training.per_device_train_batch_size == run.global_batch_size
    assert (run.prompt_format == "plain") == ("stage1" in recipe.name)


def test_recipes_were_found():
    assert len(RECIPES) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "nrom"}, "unknown method 'nrom'; known methods: baseline"),
        ({"config": "nowhere.yaml"}, "--config: there is no file nowhere.yaml"),
        ({"prompt_format": "fancy"}, "prompt_format must be plain or chat, not 'fancy'"),
        ({"global_batch_size": 9}, "global_batch_size 9 is not a multiple of per_device_train_batch_size 4 x 1"),
        ({"no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_wrong_settings_are_one_line(stage_arguments, tmp_path, change, message):
    with pytest.raises(UserError, match=message) as error:
        parse_arguments(stage_arguments(1, **{"method": "norm", "root": tmp_path, **change}))
    assert "\n" not in str(error.value)


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
        "error: 1 of 1 rows cannot be used, more than the 0.10% of bad_rows_limit: 1 x there is no image file; "
        f"they are listed in {quarantine}\n"
    )
    (entry,) = read_entries(quarantine)
    assert entry[:5] == (str(data), 0, "r1", "there is no image file", f"{images}/gone.png")


def test_accumulation_follows_from_the_world_size():
    assert accumulation_steps(256, 2, 64) == 2 and accumulation_steps(128, 1, 1) == 128
    with pytest.raises(UserError, match="128 is not a multiple of per_device_train_batch_size 64 x 4 processes"):
        accumulation_steps(128, 64, 4)


def test_every_parameter_has_one_rate_or_is_frozen():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "b": torch.nn.Linear(3, 1)})
    groups = group_parameters(model, {"^a": 1e-3, "b.weight": 1e-4}, ["b.bias"])
    assert [(g.pattern, g.learning_rate, g.size) for g in groups] == [
        ("b.bias", None, 1),
        ("^a", 1e-3, 9),
        ("b.weight", 1e-4, 3),
    ]
    with pytest.raises(UserError, match=r"parameter b\.weight must match one of .*; it matches none"):
        group_parameters(model, {"^a": 1e-3}, ["b.bias"])
    with pytest.raises(UserError, match=r"parameter a\.weight must match one of .*; it matches \^a and weight"):
        group_parameters(model, {"^a": 1e-3, "weight": 1e-4}, ["bias"])


LORA = {"r": 4, "lora_alpha": 8, "target_modules": r".*language_model\.layers\..*\.(q|v)_proj"}


def lora_arguments(stage_arguments, root, checkpoint, **settings):
    """The recipe of Llama-3.2-3B on tiny shapes."""
    return stage_arguments(
        2,
        "norm-gwc",
        root,
        config=CONFIGURATION / "llama-3.2-3b" / "stage2_lora.yaml",
        model_name_or_path=checkpoint,
        lora=json.dumps(LORA),
        bf16="false",
        dataloader_num_workers=0,
        dataloader_pin_memory="false",
        **settings,
    )


def test_adapters_train_and_are_merged(straight, stage_arguments, tmp_path):
    run_stage(lora_arguments(stage_arguments, tmp_path, straight / "stage1", max_steps=2))
    before, after = weights(straight / "stage1"), weights(tmp_path / "norm-gwc" / "stage2")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    adapted = {
        name for name in before if "language_model" in name and ("q_proj.weight" in name or "v_proj.weight" in name)
    }
    assert changed == adapted | {name for name in before if "multi_modal_projector" in name} and adapted


def test_adapters_resume_to_the_bit(straight, stage_arguments, tmp_path):
    run_stage(lora_arguments(stage_arguments, tmp_path / "straight", straight / "stage1"))

    def stop(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise KeyboardInterrupt

    arguments = lora_arguments(stage_arguments, tmp_path / "stopped", straight / "stage1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonLines, "on_step_begin", stop, raising=False)
        with pytest.raises(KeyboardInterrupt):
            run_stage(arguments)
    run_stage(arguments)
    one, other = (weights(tmp_path / name / "norm-gwc" / "stage2") for name in ("straight", "stopped"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_with_bfloat16_only_frozen_weights_are_rounded(straight, stage_arguments, tmp_path):
    arguments = lora_arguments(stage_arguments, tmp_path, straight / "stage1", max_steps=1, use_cpu="true")
    arguments[arguments.index("--bf16") + 1] = "true"
    run_stage(
        [*arguments, "--warmup_steps", "0", "--learning_rates", '{"lora_": 1e-3, "multi_modal_projector": 1e-30}']
    )
    before, after = weights(straight / "stage1"), weights(tmp_path / "norm-gwc" / "stage2")
    for name, tensor in before.items():
        if "projector" in name:
            assert torch.equal(tensor, after[name])
        elif "q_proj" not in name and "v_proj" not in name:
            assert torch.equal(tensor.bfloat16().float(), after[name])


@pytest.mark.parametrize(("lora", "message"), [({"rank": 4}, "lora: .*rank"), ({"target_modules": "x"}, "lora: .*x")])
def test_wrong_adapter_settings_are_one_line(stage_arguments, straight, tmp_path, lora, message):
    arguments = lora_arguments(stage_arguments, tmp_path, straight / "stage1")
    arguments[arguments.index("--lora") + 1] = json.dumps(lora)
    with pytest.raises(UserError, match=message):
        run_stage(arguments)


def test_failing_images_are_replaced_alike_after_a_restart(straight, stage_arguments, tiny_data, tmp_path):
    """Two epochs in which the same rows fail and others take their place."""
    images = tmp_path / "images"
    shutil.copytree(tiny_data / "images", images)
    for damaged in ("1.png", "4.png", "14.png", "20.png"):
        (images / damaged).write_bytes(b"damaged")

    def arguments(name, **settings):
        start = {"model_name_or_path": straight / "stage1", "image_folder": images, **settings}
        return stage_arguments(2, "norm-gwc", tmp_path / name, bad_rows_limit=0.5, **start)

    def stop(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise KeyboardInterrupt

    run_stage(arguments("straight"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonLines, "on_step_begin", stop, raising=False)
        with pytest.raises(KeyboardInterrupt):
            run_stage(arguments("stopped"))
    run_stage(arguments("stopped", dataloader_num_workers=2))
    one, other = (tmp_path / name / "norm-gwc" / "stage2" for name in ("straight", "stopped"))
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())
    for folder in (one, other):
        entries = read_entries(folder / "quarantine.jsonl")
        assert sorted(entry.row for entry in entries) == [1, 4, 14, 20] and {e.found for e in entries} == {"training"}


@pytest.mark.slow
def test_sigkill_at_any_moment_then_the_same_command(straight, stage_arguments, tmp_path):
    arguments = stage_arguments(2, "norm-gwc", tmp_path, model_name_or_path=straight / "stage1")
    command = [sys.executable, "-m", "train.sft", *arguments]
    folder = tmp_path / "norm-gwc" / "stage2"
    # the straight run has one thread (conftest); the order of a sum, and so its last bit, depends on their number
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for sign in ("checkpoint-2/optimizer.pt", "checkpoint-6", ".final"):
        process = subprocess.Popen(command, env=env)  # noqa: S603
        while process.poll() is None and not (folder / sign).exists():
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, env=env)  # noqa: S603
    expected = weights(straight / "stage2")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)  # noqa: S603
    assert "already done" in done.stdout


@pytest.mark.slow
def test_run_script_trains_both_stages(tiny_backbones, tiny_data, tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    (root / "data").symlink_to(tiny_data)
    script = REPOSITORY / "train" / "run.sh"
    command = ["bash", str(script), "--backbone", "tinyworld", "--method", "norm", "--seed", "7"]
    command += ["--vision-tower", str(tiny_backbones.vision), "--language-model", str(tiny_backbones.qwen2)]
    command += ["--output-root", str(root), "--", "--max_steps", "2", "--global_batch_size", "4"]
    command += ["--per_device_train_batch_size", "4"]
    env = {**os.environ, "LAUNCH": sys.executable}
    subprocess.run(command, check=True, env=env)  # noqa: S603
    assert (root / "checkpoints" / "norm-seed7" / "stage2" / "training_complete.json").exists()
    wrong = subprocess.run(["bash", str(script), "--method", "norm"], capture_output=True, text=True)  # noqa: S603, S607
    assert wrong.returncode == 1 and wrong.stderr.startswith("error: --backbone and --method are needed")


@pytest.mark.parametrize(
    ("method", "sizes", "measured"),
    [
        ("norm-geomean", [32, 32], True),
        ("norm-scalar", [1], False),
        ("norm-fixed", [], False),
        ("projector-rescaled", [], True),
    ],
)
def test_other_arms_are_measured_and_train(stage_arguments, tmp_path, method, sizes, measured):
    run_stage(stage_arguments(1, method, tmp_path, max_steps=1, save_steps=1))
    folder = tmp_path / method / "stage1"
    config = json.loads((folder / "config.json").read_text())
    assert config["method"] == method and (config["visual_norm"] is not None) == measured
    norm = {name: tensor for name, tensor in weights(folder).items() if "projector.norm" in name}
    assert sorted(tensor.numel() for tensor in norm.values()) == sizes
    record = json.loads((folder / "norm_parameters.json").read_text())
    assert (record["bias"] is None, record["gain"] is None) == (len(sizes) < 2, method == "projector-rescaled")
