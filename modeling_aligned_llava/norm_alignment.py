"""LayerNorm with Global Weight Compensation, for the projector's output (paper section 5, Eq. 11-12 and 24-26).

A small gain gives visual tokens the norm of text but shrinks the gradient to the projector; the compensation divides
that gradient by mean|gain| and leaves the gradients of gain and bias as they are. Torch only: the file is saved beside
the weights. Shape suffixes: D = hidden size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _ScaleGradient(torch.autograd.Function):
    """Identity forward; the gradient is multiplied by a 0-dim tensor."""

    generate_vmap_rule = True  # usable under torch.func

    @staticmethod
    def forward(x, factor):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (factor,) = ctx.saved_tensors
        return grad * factor.to(grad.dtype), None


class GlobalWeightCompensatedLayerNorm(nn.Module):
    """`y = scale * (weight * xhat + bias)`, whose input gradient is divided by mean|scale * weight| (Eq. 12).

    LayerNorm's backward is linear and the factor a scalar, so scaling the gradient at the *input* of the fused
    LayerNorm equals the paper's hook on `xhat`, and the forward stays bit-equal to `F.layer_norm`. The gradient is
    compensated in training mode only: in eval mode attributions see the true gradient.

    Args:
        dim: D, the hidden size of the language model.
        eps: epsilon of the LayerNorm.
        centred: False leaves the mean in and has no bias: `xhat = x / rms(x)` (RMSNorm).
        gain_init: initial value of every element of the gain; `s / sqrt(D)` gives every token the norm `s` (Eq. 11).
        scale: constant factor of gain and bias (1 for the paper's parametrisation).
        compensation_exponent: 1 is the paper's compensation, 0 is none.
        compensation_eps: lower limit of mean|gain|; public descriptions of the paper give 1e-3, far below real gains.
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        *,
        centred: bool = True,
        gain_init: float = 1.0,
        scale: float = 1.0,
        compensation_exponent: float = 1.0,
        compensation_eps: float = 1e-3,
    ):
        super().__init__()
        self.dim, self.eps, self.centred, self.gain_init, self.scale = dim, eps, centred, gain_init, scale
        self.compensation_exponent = compensation_exponent
        self.compensation_eps = compensation_eps
        # Never below float32: a gain of 0.0134 in bfloat16 loses every update below 3e-5.
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.weight = nn.Parameter(torch.empty(dim, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim, dtype=dtype)) if centred else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to `gain_init` and the bias to zero."""
        nn.init.constant_(self.weight, self.gain_init)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def compensation_factor(self) -> Tensor:
        """Return the 0-dim factor of the input gradient, `1 / max(mean|gain|, eps) ** exponent`.

        Call it only inside a forward pass: under FSDP and ZeRO-3 the gain is whole only there.
        """
        gain = self.weight.detach()
        gain = gain.to(torch.promote_types(gain.dtype, torch.float32))
        mean_gain = (gain.abs().mean() * self.scale).clamp_min(self.compensation_eps)
        return mean_gain.pow(-self.compensation_exponent)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of `x` [..., D]; the result has the shape and dtype of `x`."""
        x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.compensation_exponent > 0 and self.training and torch.is_grad_enabled():
            # Before the gradient is cast down: in float16 small entries would vanish first and be multiplied then.
            x_wide = _ScaleGradient.apply(x_wide, self.compensation_factor())
        gain_D = self._scaled(self.weight.to(x_wide.dtype))
        if self.bias is None:
            # With the gain inside, vLLM takes the module for an RMSNorm of gain `weight` and puts its own there.
            return (F.rms_norm(x_wide, (self.dim,), eps=self.eps) * gain_D).to(x.dtype)
        y = F.layer_norm(x_wide, (self.dim,), gain_D, self._scaled(self.bias.to(x_wide.dtype)), self.eps)
        return y.to(x.dtype)

    def _scaled(self, parameter: Tensor) -> Tensor:
        return parameter if self.scale == 1.0 else parameter * self.scale

    def _apply(self, fn, recurse=True):
        # `model.bfloat16()` and `model.to(dtype)` call this: move the parameters, never round them.
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        return super()._apply(keep_precision, recurse)

    def extra_repr(self) -> str:
        return (
            f"{self.dim}, eps={self.eps}, centred={self.centred}, gain_init={self.gain_init:.4g}, "
            f"scale={self.scale:.4g}, compensation_exponent={self.compensation_exponent}"
        )


def target_gain(text_norm: float, dim: int, target_scale: float = 1.0) -> float:
    """Return the gain that gives every normalised token [D] the L2 norm `target_scale * text_norm` (Eq. 11)."""
    return target_scale * text_norm / math.sqrt(dim)


@torch.no_grad()
def embedding_norms(embedding: nn.Embedding, stored: bool = False, chunk: int = 8192) -> Tensor:
    """Return the L2 norms of the embedding module's outputs in float32, row by row, without the padding at the end.

    The module is called because some language models scale their embeddings there; `stored`: the rows as they are in
    its weight. Padding: several equal rows that are not zero, as assembly appends them.
    """
    weight = embedding.weight
    rows = len(weight)
    while rows > 0 and bool(weight[-1].any()) and torch.equal(weight[rows - 1], weight[-1]):
        rows -= 1
    ids = torch.arange(rows if rows < len(weight) - 1 else len(weight), device=weight.device)
    return torch.cat([(weight[i] if stored else embedding(i)).float().norm(dim=-1).cpu() for i in ids.split(chunk)])


def mean_embedding_norm(embedding: nn.Embedding) -> float:
    """Return `s`, the mean L2 norm over the vocabulary of the non-zero rows that are not padding (Eq. 11).

    Raises:
        ValueError: there is no non-zero row to measure (an empty shard, or weights not loaded).
    """
    norms = embedding_norms(embedding)
    norms = norms[norms != 0].double()
    if not len(norms) or not bool(norms.isfinite().all()):
        raise ValueError("cannot measure the text norm: the embedding has no finite non-zero row (sharded or empty?)")
    return norms.mean().item()


__all__ = ["GlobalWeightCompensatedLayerNorm", "embedding_norms", "mean_embedding_norm", "target_gain"]
