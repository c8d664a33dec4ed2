"""`train.sft` on models of other families: the loss of a plain forward pass, saving, loading, resuming, adapters."""

import json
import re
import shutil

import pytest
import torch
from datasets import Dataset, List
from datasets import Image as ImageFeature
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava import align, load_aligned
from modeling_aligned_llava.alignment import load_vision_language
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import FAMILIES
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint
from tests import REPOSITORY
from tests.clone import changed_copy
from tests.modeling_aligned_llava.tiny_families import BUILDERS, write_checkpoint
from tests.one_line import one_line
from tests.train.data.rows import features, turns
from tests.train.stage_results import assert_same_weights, interrupted_after, lines, weights
from tests.train.test_sharded_training import assert_close_weights, train
from train.stage import run_stage


RECIPES = REPOSITORY / "configuration/train/finetune"
RATES = '{"language": 1e-3, "projector": 1e-3, "norm": 1e-3}'
ROWS = [
    ("<image>\nwhat is it?", "a cat", [(40, 30)]),
    ("<image>\nwhere?", "on the mat", [(30, 60)]),
    ("<image>one more", "dog", [(28, 28)]),
    ("no image", "right", []),
    ("<image> and <image>: same?", "yes", [(28, 28), (50, 20)]),
]


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    """`family(name)` -> the folder of a tiny random checkpoint."""
    root = tmp_path_factory.mktemp("families")
    return lambda name: root / name if (root / name).exists() else write_checkpoint(name, root / name)


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory):
    """`rows_file(rows)` -> a JSON file of these rows, with images beside it."""
    root = tmp_path_factory.mktemp("rows")

    def write(rows):
        written = []
        for number, (question, answer, sizes) in enumerate(rows):
            names = [f"{number}-{i}.png" for i in range(len(sizes))]
            for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
                Image.new("RGB", size, (40 * number, 90 * i, 200)).save(root / name)
            written.append({"id": str(number), "image": names, "conversations": turns(question, answer)})
        file = root / f"{len(rows)}.json"
        file.write_text(json.dumps(written))
        return file

    return write


def command(model, rows, out, method="norm", recipe="full", **settings):
    given = {
        "config": RECIPES / f"{recipe}.yaml",
        "model_name_or_path": model,
        "method": method,
        "data_path": rows,
        "image_folder": rows.parent,
        "data_cache": rows.parent / "cache",
        "output_dir": out,
        "max_steps": 1,
        "global_batch_size": len(json.loads(rows.read_text())),
        "logging_steps": 1,
        "save_steps": 1,
        "dataloader_num_workers": 0,
        "bf16": "false",
        **settings,
    }
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


def by_hand(model, processor, question, answer, images):
    """Summed loss and number of supervised tokens of one row, by the processor and the model alone."""
    if processor.chat_template is None:
        text = question.replace("<image>", processor.image_token).replace("\n", "")
        batch = processor(text=[text], images=[images], suffix=[answer], return_tensors="pt")
    else:
        content = [{"type": "image"}] * len(images)
        content += [{"type": "text", "text": question.rpartition("<image>")[2].strip()}]
        if len(images) == 2:
            content.insert(1, {"type": "text", "text": " and "})
        chat = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(chat, add_generation_prompt=True) + f"{answer}<|im_end|>\n"
        starts = processor.tokenizer.bos_token and text.startswith(processor.tokenizer.bos_token)
        shown = [images] if images else None
        batch = processor(text=[text], images=shown, return_tensors="pt", add_special_tokens=not starts)
        batch["labels"] = torch.full_like(batch["input_ids"], -100)
        end = len(answer) + 2  # a token for each character, the end token, and the line break after it
        batch["labels"][0, -end:-1] = batch["input_ids"][0, -end:-1]
    count = int((batch["labels"][:, 1:] != -100).sum())
    return model(**batch).loss.item() * count, count


@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_is_that_of_a_plain_forward_pass_and_the_result_loads_both_ways(name, family, rows_file, tmp_path):
    given = ROWS[:3] if name == "paligemma" else ROWS  # it takes one image a row
    rows, folder, out = rows_file(given), family(name), tmp_path / "out"
    run_stage(command(folder, rows, out, learning_rates=RATES, warmup_steps=0))
    model, processor = align(load_vision_language(folder), "norm"), AutoProcessor.from_pretrained(folder)
    sums = []
    for number, (question, answer, sizes) in enumerate(given):
        images = [Image.open(rows.parent / f"{number}-{i}.png") for i in range(len(sizes))]
        with torch.no_grad():
            sums.append(by_hand(model.train(), processor, question, answer, images))
    (logged,) = [line for line in lines(out, "log.jsonl") if "loss" in line]
    assert logged["loss"] == pytest.approx(sum(loss for loss, _ in sums) / sum(count for _, count in sums), abs=1e-5)

    ours = load_aligned(out).eval()
    theirs = AutoModelForImageTextToText.from_pretrained(out, trust_remote_code=True).eval()
    text = f"{processor.image_token}a"
    batch = processor(text=[text], images=[[Image.new("RGB", (28, 28), (9, 99, 200))]], return_tensors="pt")
    batch.pop("labels", None)
    with torch.no_grad():
        logits = [each(**batch).logits for each in (ours, theirs, model.eval())]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("name", ["qwen2_5_vl", "smolvlm"])
def test_killed_and_resumed_equals_straight(name, family, rows_file, tmp_path):
    settings = {
        "max_steps": 4,
        "save_steps": 2,
        "micro_batch_tokens": 0,
        "per_device_train_batch_size": 1,
        "learning_rates": RATES,
    }
    model, rows = family(name), rows_file(ROWS)
    arguments = [command(model, rows, tmp_path / each, **settings) for each in ("straight", "killed")]
    run_stage(arguments[0])
    with interrupted_after(2):
        run_stage(arguments[1])
    run_stage(arguments[1])
    assert_same_weights(tmp_path / "straight", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava_onevision"])
def test_two_processes_follow_one(name, engine, family, rows_file, tmp_path):
    """With one row per micro-batch, processes often differ in whether they have an image."""
    settings = {
        "max_steps": 3,
        "global_batch_size": 4,
        "micro_batch_tokens": 0,
        "per_device_train_batch_size": 1,
        "learning_rates": RATES,
    }
    settings |= {"dataloader_drop_last": "true"}
    model, rows = family(name), rows_file(ROWS)
    run_stage(command(model, rows, tmp_path / "one", **settings))
    train(engine, 2, command(model, rows, tmp_path / "two", **settings))
    one, two = ([line for line in lines(tmp_path / each) if "loss" in line] for each in ("one", "two"))
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in two] == pytest.approx([line[key] for line in one], rel=2e-4)
    assert_close_weights(weights(tmp_path / "one"), weights(tmp_path / "two"))


def test_adapters_are_merged_and_parts_named_once_train_any_family(family, rows_file, tmp_path):
    folder = family("smolvlm")
    out = tmp_path / "out"
    run_stage(command(folder, rows_file(ROWS), out, "norm-stream", "lora", max_steps=2))
    before, after = weights(folder), weights(out)
    changed = {name for name in after if name not in before or not torch.equal(after[name], before[name])}
    assert all("connector" in name or "text_model.layers" in name or "lm_head" in name for name in changed)
    assert any("alignment_norm" in name for name in changed) and any("q_proj" in name for name in changed)
    parts = lines(out, "gradients.jsonl")[-1]["parts"]
    assert set(parts) == {"norm", "projector", "lora"}
    assert load_aligned(out).config.alignment_norm["stream_norm"] > 0


LORA_RATES = {"learning_rates": '{"lora": 1e-2, "projector": 1e-3, "norm": 1e-3}', "warmup_steps": 0, "max_steps": 2}


@pytest.mark.parametrize(
    ("name", "lora"),
    [
        ("qwen2_5_vl", {}),
        ("gemma3", {"use_dora": True}),
        ("llava", {"target_modules": ["q_proj", "embed_tokens"], "rank_pattern": {"q_proj": 2}}),
    ],
)
def test_adapters_kept_apart_are_those_that_are_merged(name, lora, family, rows_file, tmp_path):
    for merged in ("true", "false"):
        given = LORA_RATES | {"merge_adapters": merged, "lora": json.dumps({"r": 4, **lora})}
        run_stage(command(family(name), rows_file(ROWS), tmp_path / merged, "norm", "lora", **given))
    kept = load_file(tmp_path / "false/adapter_model.safetensors")
    assert not (tmp_path / "false/model.safetensors").exists()
    one, other = (dict(load_aligned(tmp_path / merged).named_parameters()) for merged in ("true", "false"))
    assert one.keys() == other.keys() and any("lora" in key for key in kept)
    for key, tensor in one.items():
        torch.testing.assert_close(other[key], tensor, atol=1e-5, rtol=0, msg=key)
    aligned = align(load_vision_language(family(name)), "norm")
    theirs = PeftModel.from_pretrained(aligned, str(tmp_path / "false")).merge_and_unload()
    for key, tensor in theirs.named_parameters():
        torch.testing.assert_close(tensor, other[key], atol=1e-5, rtol=0, msg=key)


@pytest.fixture(scope="module")
def apart(family, rows_file, tmp_path_factory):
    """Adapters kept apart, of a model whose vocabulary is far larger than each of their tensors."""
    root = tmp_path_factory.mktemp("apart")
    model, processor = BUILDERS["llava"]()
    model.resize_token_embeddings(4096)
    write_checkpoint(lambda: (model, processor), root / "model")
    settings = LORA_RATES | {"merge_adapters": "false"}
    run_stage(command(root / "model", rows_file(ROWS), root / "out", "norm", "lora", **settings))
    return root / "out"


def test_a_folder_of_adapters_loads_with_its_norm_and_peft_alone_warns(apart, monkeypatch):
    model, processor = load_aligned(apart), AutoProcessor.from_pretrained(apart)
    batch = processor(text=["<image>\nwhat?"], images=[[Image.new("RGB", (28, 28))]], return_tensors="pt")
    ours = model(**batch).logits
    theirs = AutoModelForImageTextToText.from_pretrained(apart, trust_remote_code=True)
    assert type(theirs).__module__.startswith("transformers_modules.")
    assert torch.equal(theirs(**batch).logits, ours)
    assert "**peft alone leaves the norm out**" in (apart / "README.md").read_text()
    plain = AutoModelForImageTextToText.from_pretrained(apart.parent / "model")
    with pytest.warns(UserWarning, match="alignment_norm"):
        assert not torch.allclose(PeftModel.from_pretrained(plain, str(apart))(**batch).logits, ours, atol=0.1)


def test_adapters_on_adapters_load_and_without_their_model_are_refused(apart, rows_file, tmp_path):
    run_stage(
        command(apart, rows_file(ROWS), tmp_path / "second", "norm", "lora", merge_adapters="false", **LORA_RATES)
    )
    first, second = (dict(load_aligned(folder).named_parameters()) for folder in (apart, tmp_path / "second"))
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    assert 0 < (first[name] - second[name]).abs().max() < 0.5
    file = tmp_path / "second/adapter_config.json"
    file.write_text(file.read_text().replace(str(apart), "/gone"))
    with pytest.raises(UserError, match="there is no folder /gone, to whose model its adapters belong"):
        load_aligned(tmp_path / "second")
    with pytest.raises(UserError, match="base_model_name_or_path: there is no folder /gone"):
        hash_checkpoint(tmp_path / "second")


def test_adapters_of_a_pinned_model_name_it_and_its_commit(family, rows_file, tmp_path, monkeypatch):
    monkeypatch.setattr("train.start.local_folder", lambda name: str(family("llava")))
    settings = LORA_RATES | {"merge_adapters": "false", "max_steps": 1}
    run_stage(command(f"owner/model@{'a' * 40}", rows_file(ROWS), tmp_path / "out", "norm", "lora", **settings))
    saved = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (saved["base_model_name_or_path"], saved["revision"]) == ("owner/model", "a" * 40)


@pytest.mark.parametrize("part", ["alignment_norm.weight", "lora_B", "linear_1.bias"])
def test_a_folder_of_adapters_without_a_tensor_is_refused(apart, part, tmp_path):
    shutil.copytree(apart, tmp_path / "cut")
    file = tmp_path / "cut/adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if part not in name}, file, {"format": "pt"})
    with pytest.raises(UserError, match=f"cut lacks .*{part}"):
        load_aligned(tmp_path / "cut")


def test_vicunas_generation_config_is_repaired_and_saved(family, rows_file, tmp_path):
    """transformers reads it and refuses to write it: the flag that the Hub's own fix added is set."""
    vicuna = {"bos_token_id": 1, "eos_token_id": 2, "max_length": 4096, "temperature": 0.9, "top_p": 0.6}
    model = changed_copy(family("llava"), tmp_path / "model", "generation_config.json", **vicuna)
    run_stage(command(model, rows_file(ROWS), tmp_path / "out"))
    saved = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert saved.items() >= {"temperature": 0.9, "top_p": 0.6, "do_sample": True}.items()


def test_generation_ends_at_the_token_that_ends_the_answers(family, rows_file, tmp_path):
    """Also where the checkpoint names another (Qwen2.5's base models: <|endoftext|>)."""
    model = changed_copy(family("llava"), tmp_path / "model", "generation_config.json", eos_token_id=77)
    run_stage(command(model, rows_file(ROWS), tmp_path / "out"))
    own, ends = (
        json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        for folder in (family("llava"), tmp_path / "out")
    )
    assert ends == [77, own]


def test_a_quantized_checkpoint_is_not_trained(family, rows_file, tmp_path):
    model = changed_copy(family("llava"), tmp_path / "model", quantization_config={"quant_method": "fp8"})
    with pytest.raises(UserError, match=r"is quantized \(fp8\): training needs whole weights"):
        run_stage(command(model, rows_file(ROWS), tmp_path / "out"))


def test_other_visual_tokens_than_the_models_are_one_line(family, rows_file, tmp_path):
    model = changed_copy(
        family("llava"), tmp_path / "model", "processor_config.json", vision_feature_select_strategy="full"
    )
    with one_line("its processor writes other visual tokens than the model has .* compare patch_size"):
        run_stage(command(model, rows_file(ROWS[:3]), tmp_path / "out"))


def test_adapters_without_their_model_are_not_trained(family, rows_file, tmp_path):
    get_peft_model(load_vision_language(family("llava")), LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(
        tmp_path / "adapters"
    )
    with one_line("cannot load .*adapters.*; it holds adapters without a model: merge them"):
        run_stage(command(tmp_path / "adapters", rows_file(ROWS), tmp_path / "out"))


def test_what_would_stop_the_save_stops_the_start(family, rows_file, tmp_path, monkeypatch):
    words = command(family("llava"), rows_file(ROWS), tmp_path / "out")
    monkeypatch.setattr("transformers.ProcessorMixin.save_pretrained", lambda *args, **options: 1 / 0)
    with pytest.raises(UserError, match="the trained model could not be saved: division by zero"):
        run_stage(words)
    assert not (tmp_path / "out/log.jsonl").exists()


def test_the_start_says_where_adapters_are_and_the_end_how_far_parts_moved(family, rows_file, tmp_path, capsys):
    run_stage(command(family("llava"), rows_file(ROWS), tmp_path / "out", "norm", "lora", **LORA_RATES))
    said = capsys.readouterr().out
    assert "lora: adapters in 14 layers of language" in said
    for part in ("lora", "projector", "norm"):
        assert 0 < float(re.search(rf"^{part}: moved by (.*) of its length$", said, re.MULTILINE)[1]) < 1


def test_baseline_takes_the_same_path_and_a_second_round_keeps_the_method(family, rows_file, tmp_path):
    rows = rows_file(ROWS)
    run_stage(command(family("internvl"), rows, tmp_path / "first", "baseline"))
    assert not any("alignment_norm" in name for name in weights(tmp_path / "first"))
    run_stage(command(tmp_path / "first", rows, tmp_path / "second", "baseline"))
    with pytest.raises(UserError, match="belongs to method baseline, not to norm"):
        run_stage(command(tmp_path / "first", rows, tmp_path / "third", "norm"))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("llava", {"prompt_format": "plain"}, "prompt_format: plain is for models assembled here"),
        ("aya_vision", {}, "aya_vision is none of the families it knows"),
    ],
)
def test_what_a_family_does_not_allow_is_one_line(name, settings, message, family, rows_file, tmp_path):
    with pytest.raises(UserError, match=message):
        run_stage(command(family(name), rows_file(ROWS), tmp_path / "out", **settings))


def test_embedded_images_are_trained_on_like_files(family, rows_file, tmp_path):
    rows = json.loads(rows_file(ROWS).read_text())
    folder = rows_file(ROWS).parent
    for row in rows:
        row["image"] = [{"bytes": (folder / name).read_bytes(), "path": name} for name in row["image"]]
    embedded = tmp_path / "rows.parquet"
    Dataset.from_list(rows, features=features(image=List(ImageFeature()))).to_parquet(embedded)
    losses = []
    for name, settings in {"files": {}, "embedded": {"data_path": embedded}}.items():
        run_stage(command(family("smolvlm"), rows_file(ROWS), tmp_path / name, **settings))
        losses += [line["loss"] for line in lines(tmp_path / name) if "loss" in line]
    assert losses == pytest.approx([losses[0]] * 2, abs=1e-5)
