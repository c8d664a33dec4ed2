"""A checkpoint that a server answers for: what transformers says, asked over HTTP."""

import pytest
import torch

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from modeling_aligned_llava.inference.served import SERVER_OPTIONS, Server
from tests.modeling_aligned_llava.harness.test_lm_eval_model import requests as scored
from tests.modeling_aligned_llava.harness.test_lmms_eval_model import adapter, requests
from tests.vllm_stand_in import Vllm


@pytest.fixture
def vllm(tiny_llava):
    with Vllm(tiny_llava, *SERVER_OPTIONS) as running:
        yield running


def served(vllm, options=""):
    return Server(vllm.endpoint, options)


def test_answers_are_those_of_transformers(tiny_llava, vllm):
    expected = adapter(tiny_llava, batch_size=1).generate_until(requests())
    assert adapter(tiny_llava, batch_size=4, server=served(vllm)).generate_until(requests()) == expected


def test_answers_are_kept_for_the_same_engine_alone(tiny_llava, vllm, tmp_path):
    def answer(options):
        model = adapter(tiny_llava, batch_size=4, answer_log=str(tmp_path / "log"), server=served(vllm, options))
        return model.generate_until(requests())

    first = answer("")
    vllm.refuses = True
    assert answer("") == first
    with pytest.raises(UserError, match=r"vLLM refuses a question \(400\).*no"):
        answer("--quantization fp8")


def test_a_server_that_reads_another_prompt_is_refused(tiny_llava, vllm):
    vllm.lost = 1
    with pytest.raises(UserError, match="in other tokens than its processor writes"):
        adapter(tiny_llava, batch_size=4, server=served(vllm)).generate_until(requests())


def test_a_server_that_has_died_is_one_line(tiny_llava):
    with Vllm(tiny_llava, *SERVER_OPTIONS) as vllm:
        model = adapter(tiny_llava, batch_size=4, server=served(vllm))
        assert model._generator.engine == "vllm 0.1 "
    with pytest.raises(UserError, match="vLLM does not answer any more"):
        model.generate_until(requests())


@pytest.mark.parametrize("options", [{}, {"max_length": 32}])
def test_log_likelihoods_are_those_of_transformers(tiny_llava, vllm, options):
    def scores(**more):
        model = AlignedLlavaLM(str(tiny_llava), dtype="float32", batch_size=4, progress=lambda done: None, **more)
        return model._loglikelihood_tokens(scored()), model.max_length

    shorter = {name: length - 2 for name, length in options.items()}
    (expected, longest), (scored_by_vllm, length) = scores(**shorter), scores(server=served(vllm), **options)
    assert length == (longest if options else longest - 2)  # vLLM counts the last token, and generates one
    assert [greedy for _, greedy in scored_by_vllm] == [greedy for _, greedy in expected]
    torch.testing.assert_close(
        [value for value, _ in scored_by_vllm], [value for value, _ in expected], atol=1e-4, rtol=0
    )
