"""What the two adapters do with every family that docs/reference.md names: the rows of its table, measured.

An answer is right if it is that of `model.generate` on its row alone, a log-likelihood if a forward pass gives it.
"""

import dataclasses
import random
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from modeling_aligned_llava.diagnostics.norm_profile.connector_norm import connector_norm
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness import deviations
from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from modeling_aligned_llava.harness.lmms_eval_model import AlignedLlava
from modeling_aligned_llava.inference.generator import CONTROL_CHARACTERS, Generator
from modeling_aligned_llava.inference.stop_strings import cut
from modeling_aligned_llava.inspection.model_parts import model_parts
from tests import REPOSITORY
from tests.benchmark_stand_in import image_of, mixed_rows
from tests.modeling_aligned_llava.diagnostics.family_checkpoints import PROFILED
from tests.modeling_aligned_llava.harness.test_lmms_eval_model import adapter, requests
from tests.modeling_aligned_llava.tiny_families import BUILDERS, DECODERS, tiny, write_checkpoint, write_decoder


PAGE = REPOSITORY / "docs/reference.md"
HEADER = "| Family | Image batches | Shared prefix | Questions without an image | Text tasks | Norm in the connector |"
SHARED = [(f"{question}?", [image_of(1)]) for question in ("what", "what is", "where is it", "where")]
ROWS = [*mixed_rows(7), *SHARED]
WITH_IMAGES = [row for row in ROWS if row[1]]
LIMIT = 5
OPTIONS = {"until": ["\n\n"], "max_new_tokens": LIMIT}


def image_row(name: str, folder: Path) -> str:
    """Check a family of vision-language models and return its row of the table."""
    without_images = "yes"
    rows = ROWS
    generator = _adapter(folder, 1, True)._generator
    if generator.needs_images:
        rows, without_images = WITH_IMAGES, "refused"
        with pytest.raises(UserError, match="without an image"):
            _adapter(folder, 16, True).generate_until(requests(ROWS, OPTIONS))
    expected = [_alone(generator, *row) for row in rows]
    assert len(set(expected)) > len(rows) // 2, "answers that do not depend on the question prove nothing"
    for batch_size, shared in ((1, True), (16, True), (16, False)):
        answers = _adapter(folder, batch_size, shared).generate_until(requests(rows, OPTIONS))
        assert answers == expected, (batch_size, shared)
    way = "falls back" if generator.tree is None else "yes"
    return f"| {name} | yes | {way} | {without_images} | {text_tasks(folder)} | {place_of_norm(name)} |"


def place_of_norm(name: str) -> str:
    model, inputs = tiny(name)
    place = connector_norm(model, model_parts(model), inputs)["place"]
    return {"after": "at its end", "before": "before a projection", None: "none"}[place]


def text_row(name: str, folder: Path) -> str:
    """Check a language model and return its row of the table."""
    model = _language_model(folder, 16)
    way = "falls back" if model._tree is None else "yes"
    return f"| {name} (text only) | - | {way} | - | {text_tasks(folder)} | - |"


def text_tasks(folder: Path) -> str:
    """Check log-likelihoods of one and of several tokens, with contexts in common, in batches of 1 and 16."""
    try:
        network = _language_model(folder, 1).model
    except UserError as error:
        assert "cannot score text" in str(error)
        return "refused"
    numbers = random.Random(0)

    def tokens(length: int) -> list[int]:
        return [numbers.randrange(4, 99) for _ in range(length)]

    block = tokens(12)
    contexts = [block + tokens(length) for length in (2, 5, 3)] + [tokens(6)]
    asked = [(("", ""), context, tokens(length)) for context in contexts for length in (1, 3)]
    with torch.no_grad():
        expected = [_log_likelihood(network, context, ending) for _, context, ending in asked]
    for batch_size in (1, 16):
        scores = _language_model(folder, batch_size)._loglikelihood_tokens(asked)
        assert [value for value, _ in scores] == pytest.approx(expected, abs=2e-4), batch_size
    return "yes"


def _log_likelihood(network: Any, context: list[int], ending: list[int]) -> float:
    logits = network(torch.tensor([context + ending])).logits[0, len(context) - 1 : -1].double()
    return logits.log_softmax(-1)[range(len(ending)), ending].sum().item()


def _language_model(folder: Path, batch_size: int) -> AlignedLlavaLM:
    settings = {"dtype": "float32", "device": "cpu", "trust_remote_code": True}
    return AlignedLlavaLM(str(folder), batch_size=batch_size, progress=lambda done: None, **settings)


def _adapter(folder: Path, batch_size: int, shared: bool) -> AlignedLlava:
    with pytest.MonkeyPatch.context() as patch:  # lmms-eval's image sizes would make 256 tokens of the tiny images
        small = {name: dataclasses.replace(settings, processor={}) for name, settings in deviations.STOCK.items()}
        patch.setattr(deviations, "STOCK", small)
        return adapter(folder, ROWS, batch_size=batch_size, trust_remote_code=True, shared_prefix=shared)


def _alone(generator: Generator, text: str, images: list) -> str:
    inputs = generator.inputs([generator.render(text, len(images))], [list(images)])
    with torch.inference_mode():
        ids = generator.model.generate(**inputs, max_new_tokens=LIMIT)[0, inputs["input_ids"].shape[1] :]
    text = generator.processor.tokenizer.decode(ids, skip_special_tokens=True)
    return cut(CONTROL_CHARACTERS.sub("", text), OPTIONS["until"])


def written_rows() -> list[str]:
    """The rows of the table in the documentation."""
    _, _, after = PAGE.read_text(encoding="utf-8").partition(HEADER + "\n")
    return re.findall(r"^\|.*\|$", after.partition("\n\n")[0], re.MULTILINE)[1:]


def needs(name):
    missing = name == "smolvlm" and find_spec("num2words") is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason="its processor needs num2words"))


def assert_told(messages, name, row):
    """A family that falls back says so, with one reason, and no other does."""
    assert len(set(messages)) == row.count("falls back")
    assert all(message.startswith(f"{name} reads no shared prefixes: its ") for message in messages)


@pytest.mark.parametrize("name", map(needs, BUILDERS))
def test_a_family_answers_as_the_documentation_says(name, tmp_path, caplog):
    row = image_row(name, write_checkpoint(name, tmp_path / name))
    assert row in written_rows()
    assert_told([message for message in caplog.messages if "shared" in message], name, row)


@pytest.mark.parametrize("name", DECODERS)
def test_a_language_model_scores_as_the_documentation_says(name, tmp_path, caplog):
    row = text_row(name, write_decoder(name, tmp_path / name))
    assert row in written_rows()
    assert_told([message for message in caplog.messages if "shared" in message], name, row)


@pytest.mark.parametrize("name", sorted(PROFILED.keys() - BUILDERS.keys()))
def test_a_further_family_has_its_norm_where_the_documentation_says(name):
    model, inputs = tiny(PROFILED[name][0])
    place = connector_norm(model, model_parts(model), inputs)["place"]
    words = {"after": "At its end", "before": "Before a projection", None: "None"}[place]
    assert re.search(rf"\* {words}: [^*]*`{name}`", PAGE.read_text(encoding="utf-8"))


def test_the_documentation_names_no_other_family():
    named = [row.split("|")[1].strip() for row in written_rows()]
    assert named == [*BUILDERS, *(f"{name} (text only)" for name in DECODERS)]
