"""Peak host memory of assembly and of conversion, measured on a checkpoint of a few hundred megabytes."""

import subprocess
import sys

import pytest
import torch
from transformers import (
    AutoProcessor,
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    SiglipVisionConfig,
)


MEASURE = r"""
import re, sys, psutil
from pathlib import Path
from modeling_aligned_llava import method_fields
from modeling_aligned_llava.assembly import assemble, convert
import torch, transformers
from transformers import LlavaForConditionalGeneration, Qwen2ForCausalLM, SiglipVisionModel
*sources, out = sys.argv[1:]
before = psutil.Process().memory_info().rss
(assemble if len(sources) == 2 else convert)(*sources, out, fields=method_fields("norm-gwc"))
# not ru_maxrss: that one begins with the memory of the process which started this one
print(1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) - before)
"""


def peak(*arguments):
    command = [sys.executable, "-c", MEASURE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def assert_flat(made, *sources):
    """`made`, a checkpoint of more than 400 MB, takes from these sources at most 1.3 times its size."""
    taken = peak(*sources, made)
    size = sum(file.stat().st_size for file in made.glob("*.safetensors"))
    assert size > 400e6 and 0.3 * size < taken <= 1.3 * size, taken / size
    print(f"{made.name}: {taken / size:.2f}")  # noqa: T201


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_at_most_1_3_times_the_checkpoint(tiny_backbones, tiny_checkpoint, tmp_path):
    text = Qwen2Config(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=14,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    language = Qwen2ForCausalLM._from_config(text, dtype=torch.bfloat16)
    language.save_pretrained(tmp_path / "language", max_shard_size="150MB")
    AutoTokenizer.from_pretrained(tiny_backbones.qwen2).save_pretrained(tmp_path / "language")
    del language
    assert_flat(tmp_path / "assembled", tiny_backbones.vision, tmp_path / "language")

    config = LlavaConfig(
        vision_config=SiglipVisionConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28),
        text_config=text,
        image_token_index=300,
        image_seq_length=1,
        vision_feature_select_strategy="full",
    )
    llava = LlavaForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    llava.save_pretrained(tmp_path / "llava", max_shard_size="150MB")
    AutoProcessor.from_pretrained(tiny_checkpoint("norm")).save_pretrained(tmp_path / "llava")
    del llava
    assert_flat(tmp_path / "converted", tmp_path / "llava")
