"""No loader fills a hole with random weights: each names the tensor that its checkpoint lacks, or would drop."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration, align, load_aligned, method_fields
from modeling_aligned_llava.alignment import load_vision_language
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.diagnostics.instruments import models as diagnostics
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.loading.checkpoint import check_source, load_part, load_strict, pinned
from tests.modeling_aligned_llava.tiny_families import write_checkpoint
from tests.one_line import one_line


COMMIT = "0123456789abcdef" * 2 + "01234567"


def rewrite(source: Path, target: Path, change) -> Path:
    """A copy of a checkpoint whose tensors went through `change`."""
    shutil.copytree(source, target)
    file = target / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})
    return target


def without(source: Path, target: Path, tensor: str) -> Path:
    """A copy of a checkpoint that lacks the one tensor whose name ends in `tensor`."""
    (name,) = (name for name in load_file(source / "model.safetensors") if name.endswith(tensor))
    return rewrite(source, target, lambda state: {key: value for key, value in state.items() if key != name})


@pytest.fixture(scope="module")
def aligned_llava(tiny_llava, tmp_path_factory):
    """A stock LLaVA that was aligned in place and saved."""
    folder = tmp_path_factory.mktemp("aligned") / "llava"
    shutil.copytree(tiny_llava, folder)
    align(hf.LlavaForConditionalGeneration.from_pretrained(tiny_llava), "norm").save_pretrained(folder)
    return folder


PROJECTOR = "multi_modal_projector.linear_1.weight"
VISION_LAYER = "encoder.layers.0.mlp.fc1.weight"
TEXT_LAYER = "layers.1.mlp.up_proj.weight"
FIELDS = method_fields("norm")


@pytest.mark.parametrize(
    ("source", "tensor", "load"),
    [
        ("ours", TEXT_LAYER, lambda folder: load_strict(AlignedLlavaForConditionalGeneration, folder)),
        ("ours", PROJECTOR, load_vision_language),
        ("ours", TEXT_LAYER, lambda folder: AlignedLlavaLM(folder, device="cpu")),
        ("qwen2", TEXT_LAYER, lambda folder: AlignedLlavaLM(folder, device="cpu")),
        ("llava", VISION_LAYER, load_generator),
        ("aligned_llava", PROJECTOR, load_aligned),
        ("aligned_llava", TEXT_LAYER, load_generator),
        ("llama", "embed_tokens.weight", lambda folder: load_strict(hf.AutoModelForCausalLM, folder)),  # a tied head
        ("ours", PROJECTOR, diagnostics.load),
        ("ours", "embed_tokens.weight", diagnostics.load_language),
        ("qwen2", TEXT_LAYER, diagnostics.load_language),
        ("ours", VISION_LAYER, diagnostics.load_encoder),
        ("vision", "encoder.layers.2.mlp.fc1.weight", diagnostics.load_encoder),
    ],
)
def test_a_missing_tensor_is_named(
    tiny_checkpoint, tiny_backbones, tiny_llava, aligned_llava, tmp_path, source, tensor, load
):
    sources = {"ours": tiny_checkpoint("norm-gwc"), "llava": Path(tiny_llava), "aligned_llava": aligned_llava}
    sources |= vars(tiny_backbones)
    load(str(sources[source]))
    folder = without(sources[source], tmp_path / "holed", tensor)
    with one_line(rf"holed lacks the tensors? .*{tensor}"):
        load(str(folder))


@pytest.mark.parametrize(("part", "tensor"), [("vision tower", VISION_LAYER), ("language model", TEXT_LAYER)])
def test_assembly_names_a_missing_tensor_of_either_backbone(tiny_backbones, tmp_path, part, tensor):
    folders = {"vision tower": tiny_backbones.vision, "language model": tiny_backbones.qwen2}
    folders[part] = without(folders[part], tmp_path / "holed", tensor)
    with pytest.raises(UserError, match=rf"^{part}: .*holed lacks the tensor .*{tensor}"):
        assemble(*folders.values(), tmp_path / "out", fields=FIELDS)
    assert not (tmp_path / "out").exists()


def test_a_tower_may_lack_what_is_dropped_with_its_last_layer(tiny_backbones, tmp_path):
    def keep_used(state):
        return {name: tensor for name, tensor in state.items() if ".head." not in name and "layers.2." not in name}

    tower = rewrite(tiny_backbones.vision, tmp_path / "tower", keep_used)
    assert assemble(tower, tiny_backbones.qwen2, tmp_path / "out", fields=FIELDS).is_dir()


def test_a_norm_that_the_configuration_does_not_describe_is_not_dropped_in_silence(
    tiny_llava, aligned_llava, tmp_path
):
    folder = tmp_path / "undescribed"
    shutil.copytree(aligned_llava, folder)
    shutil.copy(Path(tiny_llava) / "config.json", folder)
    with pytest.raises(UserError, match=r"undescribed holds the tensors .*alignment_norm\.bias"):
        load_vision_language(folder)


def test_unexpected_tensors_are_an_error_where_none_may_be_left_unread(tiny_checkpoint, tmp_path):
    folder = rewrite(tiny_checkpoint("norm"), tmp_path / "more", lambda state: {**state, "extra": torch.zeros(2)})
    load_strict(AlignedLlavaForConditionalGeneration, folder)  # reported by transformers
    load_strict(AlignedLlavaForConditionalGeneration, folder, unused="ex.*")
    with pytest.raises(UserError, match=r"more holds the tensor extra, which its configuration does not describe"):
        load_strict(AlignedLlavaForConditionalGeneration, folder, unused="")


def test_a_source_is_a_folder_or_owner_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "a-file").write_text("")
    for source in ("results", tmp_path, "Qwen/Qwen2.5-7B-Instruct", f"Qwen/Qwen2.5-7B-Instruct@{COMMIT}"):
        check_source(source, "part")
    for source in ("typo", "a-file", "a/b/c", "./results/no", str(tmp_path / "no"), Path("owner/name")):
        with pytest.raises(UserError, match=f"part: there is no folder {source}"):
            check_source(source, "part")


def test_a_source_may_name_a_commit_or_a_branch(tmp_path):
    assert pinned(tmp_path, trust_remote_code=True) == (str(tmp_path), None)
    assert pinned("owner/name") == ("owner/name", None) and pinned("owner/name@main") == ("owner/name", "main")
    assert pinned(f"owner/name@{COMMIT}", trust_remote_code=True) == ("owner/name", COMMIT)


def changed(source, target, file, change):
    """A copy of a checkpoint with one JSON file changed in place by `change(content)`."""
    shutil.copytree(source, target)
    content = json.loads((target / file).read_text())
    change(content)
    (target / file).write_text(json.dumps(content))
    return target


@pytest.mark.parametrize("tensor", [TEXT_LAYER, PROJECTOR, VISION_LAYER, "projector.norm.weight"])
def test_the_class_itself_fills_no_tensor_with_random_numbers(tiny_checkpoint, tmp_path, tensor):
    folder = without(tiny_checkpoint("norm-gwc"), tmp_path / "holed", tensor)
    for load in (AlignedLlavaForConditionalGeneration, hf.AutoModelForImageTextToText):
        with pytest.raises(OSError, match=rf"holed lacks the tensor \S+{tensor} \(1 in all\); copy the weights again"):
            load.from_pretrained(folder)
    _, info = AlignedLlavaForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert len(info["missing_keys"]) == 1  # who asks for the report reads it


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("text_config", "hidden_size", 10**7),
        ("text_config", "vocab_size", 2**40),
        ("vision_config", "num_hidden_layers", 10**9),
    ],
)
def test_absurd_sizes_are_named_before_memory_is_taken_for_them(tiny_checkpoint, tmp_path, part, name, value):
    folder = changed(
        tiny_checkpoint("norm"), tmp_path / "huge", "config.json", lambda c: c[part].update({name: value})
    )
    with pytest.raises(UserError, match=rf"huge: its configuration says {name} {value}, its weights do not$"):
        load_generator(str(folder))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", lambda c: c.update(image_token_id=5), "<image> is token 259 to its tokenizer, but 5 to its"),
        ("tokenizer.json", lambda c: c["model"].update(vocab={}), "damaged: "),
        ("processor_config.json", lambda c: c.update(image_processor=[1]), "damaged: "),
        ("config.json", lambda c: c.update(text_config=[1]), "damaged: "),
        ("config.json", lambda c: c["text_config"].update(rope_parameters=3), "damaged: "),
    ],
)
def test_damaged_files_of_a_checkpoint_are_one_line(tiny_checkpoint, tmp_path, file, change, message):
    folder = changed(tiny_checkpoint("norm"), tmp_path / "damaged", file, change)
    with one_line(message):
        load_generator(str(folder))


def test_a_tokenizer_is_saved_alike_online_and_offline(tiny_checkpoint, tmp_path):
    assembled = tiny_checkpoint("norm")
    processor = load_part(hf.AutoProcessor, assembled, local_files_only=True)
    processor.save_pretrained(tmp_path)
    for folder in (assembled, tmp_path):
        saved = json.loads((folder / "tokenizer_config.json").read_text())
        assert "eos_token" in saved and not saved.keys() & {"is_local", "local_files_only"}


def test_weights_of_which_one_half_would_be_dropped_are_refused(tiny_llava, tmp_path):
    shutil.copytree(tiny_llava, tmp_path / "model")
    (tmp_path / "model/model.safetensors").unlink()
    load_vision_language(tiny_llava).save_pretrained(tmp_path / "model", max_shard_size="100KB")
    assert load_vision_language(tmp_path / "model")  # shards alone
    shutil.copy(tiny_llava / "model.safetensors", tmp_path / "model")
    with pytest.raises(UserError, match="and shards with an index, of which only one"):
        load_vision_language(tmp_path / "model")


def test_no_prompt_is_cut_as_its_tokenizer_once_cut_texts(tmp_path):
    """A tokenizer saved after `tokenizer(text, truncation=True, max_length=20)` keeps that in two files."""
    folder = write_checkpoint("llava", tmp_path / "llava")
    prompt = {"text": f"<image>{'what? ' * 9}", "images": Image.new("RGB", (40, 40)), "return_tensors": "pt"}
    whole = load_part(hf.AutoProcessor, folder)(**prompt)["input_ids"].tolist()
    cut = {"max_length": 20, "stride": 0}
    for file, changes in (
        ("tokenizer.json", {"truncation": {**cut, "direction": "Right", "strategy": "LongestFirst"}}),
        ("tokenizer_config.json", {**cut, "truncation": True, "padding": "max_length"}),
    ):
        saved = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(saved | changes))
        assert load_part(hf.AutoProcessor, folder)(**prompt)["input_ids"].tolist() == whole, file


@pytest.mark.parametrize("family", ["llava", "llava_next"])
@pytest.mark.parametrize(
    "absent",
    [
        ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"),  # before transformers 4.44
        ("num_additional_image_tokens",),  # before 4.46
    ],
)
def test_an_older_processor_of_llava_writes_the_visual_tokens_of_its_model(tmp_path, family, absent):
    folder = write_checkpoint(family, tmp_path / family)
    image = {"text": "<image>", "images": Image.new("RGB", (40, 40)), "return_tensors": "pt"}
    whole = load_part(hf.AutoProcessor, folder)(**image)["input_ids"].tolist()
    file = folder / "processor_config.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k not in absent}))
    assert load_part(hf.AutoProcessor, folder)(**image)["input_ids"].tolist() == whole


@pytest.mark.parametrize("with_config", [False, True])
def test_adapters_without_a_model_are_called_so(tmp_path, with_config):
    folder = write_checkpoint("llava", tmp_path / "llava")
    model = hf.AutoModelForImageTextToText.from_pretrained(folder)
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapters")
    if with_config:
        shutil.copy(folder / "config.json", tmp_path / "adapters")
    with one_line("cannot load .*adapters.*; it holds adapters without a model: merge them"):
        diagnostics.load(str(tmp_path / "adapters"))
