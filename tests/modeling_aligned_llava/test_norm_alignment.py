"""The norm: exact forward and backward against float64 algebra, bit-equality with torch, precision of the gain."""

import math

import pytest
import torch
import torch.nn.functional as F

from modeling_aligned_llava.norm_alignment import (
    GlobalWeightCompensatedLayerNorm,
    embedding_norms,
    mean_embedding_norm,
    target_gain,
)


EPS = 1e-5


def reference(x, gain, bias, upstream, factor, centred=True):
    """The norm and its gradients by hand: y = gain * xhat + bias, and the input gradient times `factor`."""
    dim = x.shape[-1]
    x = x - x.mean(-1, keepdim=True) if centred else x
    deviation = (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    xhat = x / deviation
    d_xhat = upstream * gain
    along_ones = d_xhat.sum(-1, keepdim=True) / dim if centred else 0.0
    d_x = (d_xhat - along_ones - xhat * (d_xhat * xhat).sum(-1, keepdim=True) / dim) / deviation
    return xhat * gain + bias, d_x * factor, (upstream * xhat).sum((0, 1)), upstream.sum((0, 1))


def test_compensation_comes_before_the_gradient_is_cast_down():
    """In float16 a gradient below 6e-8 is zero; times 1 / 0.02 it is not."""
    norm = GlobalWeightCompensatedLayerNorm(4, gain_init=0.02)
    x = torch.randn(2, 4, dtype=torch.float16, requires_grad=True)
    norm(x).backward(torch.tensor([[2e-6, 0, 0, 0]] * 2, dtype=torch.float16))
    wide = x.detach().float().requires_grad_()
    norm(wide).backward(torch.tensor([[2e-6, 0, 0, 0]] * 2, dtype=torch.float16).float())
    assert torch.equal(x.grad, wide.grad.half()) and x.grad.any()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, lambda c: 1 / c),
        ({"compensation_exponent": 0.0}, lambda c: 1.0),
        ({"compensation_exponent": 0.5}, lambda c: c**-0.5),
        ({"compensation_eps": 0.5}, lambda c: 2.0),
        ({"scale": 0.25}, lambda c: 1 / (0.25 * c)),
        ({"centred": False}, lambda c: 1 / c),
        ({"centred": False, "compensation_exponent": 0.5}, lambda c: c**-0.5),
    ],
)
def test_forward_and_backward_equal_the_algebra(settings, expected):
    torch.manual_seed(0)
    norm64 = GlobalWeightCompensatedLayerNorm(12, eps=EPS, **settings).double()
    centred = norm64.centred
    torch.nn.init.normal_(norm64.weight, std=0.02)
    if centred:
        torch.nn.init.normal_(norm64.bias)
    x = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(3, 5, 12, dtype=torch.float64)
    gain = norm64.weight.detach() * norm64.scale
    bias = norm64.bias.detach() * norm64.scale if centred else torch.zeros(12).double()
    factor = expected(norm64.weight.detach().abs().mean().item())
    y, d_x, d_gain, d_bias = reference(x.detach(), gain, bias, upstream, factor, centred)

    out = norm64(x)
    out.backward(upstream)

    close = {"rtol": 1e-12, "atol": 1e-13}
    torch.testing.assert_close(out, y, **close)
    torch.testing.assert_close(x.grad, d_x, **close)
    torch.testing.assert_close(norm64.weight.grad, d_gain * norm64.scale, **close)
    if centred:
        torch.testing.assert_close(norm64.bias.grad, d_bias * norm64.scale, **close)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forward_is_bit_equal_to_the_definition(dtype, centred):
    torch.manual_seed(1)
    norm = GlobalWeightCompensatedLayerNorm(64, gain_init=0.0134, centred=centred)
    x = (40 * torch.randn(2, 7, 64)).to(dtype)
    if centred:
        torch.nn.init.normal_(norm.bias)
        expected = F.layer_norm(x.float(), (64,), norm.weight, norm.bias, norm.eps).to(dtype)
    else:
        expected = F.rms_norm(x.float(), (64,), norm.weight, norm.eps).to(dtype)
    assert norm(x).dtype == dtype
    assert torch.equal(norm(x), expected)


def test_eval_mode_shows_the_true_gradient():
    norm = GlobalWeightCompensatedLayerNorm(16, gain_init=0.01).eval()
    data, upstream = torch.randn(4, 16), torch.randn(4, 16)
    plain, in_eval = (data.clone().requires_grad_() for _ in range(2))
    F.layer_norm(plain, (16,), norm.weight, norm.bias, norm.eps).backward(upstream)
    norm(in_eval).backward(upstream)
    assert torch.equal(in_eval.grad, plain.grad)


def test_target_gain_gives_every_token_the_target_norm():
    norm = GlobalWeightCompensatedLayerNorm(256, gain_init=target_gain(0.8, 256, target_scale=2.0))
    norms = norm(30 * torch.randn(50, 256) + 5).norm(dim=-1)
    torch.testing.assert_close(norms, torch.full_like(norms, 1.6), rtol=1e-4, atol=0)


def test_vmap_gives_the_gradients_of_each_row():
    norm = GlobalWeightCompensatedLayerNorm(8, gain_init=0.02)
    x = torch.randn(3, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(norm(x).pow(2).sum(), x)
    per_row = torch.func.vmap(torch.func.grad(lambda row: norm(row).pow(2).sum()))(x)
    torch.testing.assert_close(per_row, expected)


def test_rows_that_pad_the_vocabulary_are_left_out_of_the_text_norm():
    embedding = torch.nn.Embedding(4, 8)
    before = mean_embedding_norm(embedding)
    mean = embedding.weight.mean(0, keepdim=True)
    one, three = (torch.nn.Embedding.from_pretrained(torch.cat([embedding.weight, *[mean] * n])) for n in (1, 3))
    assert mean_embedding_norm(three) == before and mean_embedding_norm(one) != before  # one row may be a token


def test_text_norm_is_the_mean_over_nonzero_rows_of_what_the_module_outputs():
    class Scaled(torch.nn.Embedding):
        def forward(self, ids):
            return 3 * super().forward(ids)

    embedding = Scaled(5, 4)
    with torch.no_grad():
        embedding.weight.copy_(torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0])[:, None].expand(5, 4))
    assert mean_embedding_norm(embedding) == pytest.approx(3 * 2 * math.sqrt(4))
    assert embedding_norms(embedding, stored=True, chunk=2).tolist() == [2, 0, 4, 0, 6]
    with pytest.raises(ValueError, match="no finite non-zero row"):
        torch.nn.init.zeros_(embedding.weight)
        mean_embedding_norm(embedding)
