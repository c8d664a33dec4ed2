"""The norm and the model on a GPU: forward, compensated gradient, bfloat16, generation."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import AutoProcessor

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration, GlobalWeightCompensatedLayerNorm
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.inference.prefix_plan import Segment
from tests.gpu import needs_gpu


pytestmark = needs_gpu


def norm_and_input(dtype=torch.float32):
    torch.manual_seed(0)
    norm = GlobalWeightCompensatedLayerNorm(3584, gain_init=0.01336).cuda()
    return norm, (30 * torch.randn(2, 729, 3584, device="cuda")).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_is_bit_equal_to_the_definition(dtype):
    norm, x = norm_and_input(dtype)
    assert torch.equal(norm(x), F.layer_norm(x.float(), (3584,), norm.weight, norm.bias, norm.eps).to(dtype))


def test_the_compensated_gradient_is_the_plain_one_over_the_mean_gain():
    norm, x = norm_and_input(torch.float64)
    norm.double()
    x.requires_grad_()
    upstream = torch.randn_like(x)
    (compensated,) = torch.autograd.grad(norm(x), x, upstream)
    plain_y = F.layer_norm(x, (3584,), norm.weight, norm.bias, norm.eps)
    (plain,) = torch.autograd.grad(plain_y, x, upstream)
    torch.testing.assert_close(compensated, plain / norm.weight.abs().mean(), rtol=1e-12, atol=1e-12)


def test_the_norm_stays_in_float32_in_a_bfloat16_model(tiny_checkpoint):
    folder = tiny_checkpoint("norm-gwc")
    half = AlignedLlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda")
    assert half.model.multi_modal_projector.norm.weight.dtype == torch.float32


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_decoding_with_cuda_graphs_gives_the_same_tokens(tiny_checkpoint, cache):
    """With a static cache `generate` compiles the decoding step and replays it as a CUDA graph."""
    folder = tiny_checkpoint("norm-gwc")
    processor = AutoProcessor.from_pretrained(folder)
    inputs = processor(images=[Image.new("RGB", (30, 30), (200, 9, 90))], text=["<image>what?"], return_tensors="pt")
    model = AlignedLlavaForConditionalGeneration.from_pretrained(folder).eval()
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    expected = model.generate(**inputs, **settings)
    found = model.cuda().generate(**inputs.to("cuda"), **settings, cache_implementation=cache)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shared_prefixes_give_the_answers_of_single_rows(tiny_checkpoint, attention):
    generator = load_generator(str(tiny_checkpoint("norm-gwc")), "float32", "cuda")
    generator.model.set_attn_implementation(attention)
    image = Image.new("RGB", (30, 30), (200, 9, 90))
    prompts = [generator.render(text, 1) for text in ("what?", "how many?", "which one is it?")]
    alone = [generator.answer([prompt], [[image]], 8)[0] for prompt in prompts]
    rows = generator.tokenize(prompts, [[image.size]] * 3)
    shared = generator.end_of_images(rows[0])
    assert generator.answer_shared(prompts, rows, [Segment((0, 1, 2), shared)], [[image]], 8) == alone
