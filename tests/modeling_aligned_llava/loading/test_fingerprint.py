"""The digest of a checkpoint: all that an answer depends on, and nothing else."""

import json

import pytest

from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


READ = [
    *("model.safetensors", "config.json", "generation_config.json", "adapter_config.json", "chat_template.jinja"),
    *("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "spiece.model", "tekken.json", "vocab.txt"),
    *("preprocessor_config.json", "video_preprocessor_config.json", "modeling_x.py", "tokenizer.model.v3"),
    "additional_chat_templates/default.jinja",
]
UNREAD = ["probe.jsonl", "README.md", "settings.json", "training_complete.json", ".gitattributes", "optimizer.pt"]


@pytest.mark.parametrize("name", [*READ, *UNREAD])
def test_every_file_that_is_read_counts_and_records_of_training_do_not(tmp_path, name):
    (tmp_path / "model.safetensors").write_bytes(b"1")
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    digests = [hash_checkpoint(tmp_path)]
    for content in ("{}", "{ }"):
        file.write_text(content)
        digests.append(hash_checkpoint(tmp_path))
    assert len(set(digests)) == (3 if name in READ else 1)


def test_the_model_below_adapters_counts(tmp_path):
    """Trained on again in the same folder, or another one named."""
    adapters = tmp_path / "adapters"
    for base in ("first", "second"):
        (tmp_path / base).mkdir()
        (tmp_path / base / "model.safetensors").write_text(base)
    adapters.mkdir()

    def digest(base):
        settings = {"base_model_name_or_path": str(tmp_path / base), "lora_alpha": 16}
        (adapters / "adapter_config.json").write_text(json.dumps(settings))
        return hash_checkpoint(adapters)

    before, other = digest("first"), digest("second")
    (tmp_path / "first/model.safetensors").write_text("again")
    assert len({before, other, digest("first")}) == 3
