"""Logits only at labelled positions, on a CPU as on a GPU: after an image, most positions have no label.

On CUDA, TRL's fused head selects the labelled positions itself. On other devices it scores every position, because
compiling accelerators would compile again for each number of labels. A CPU does not compile, and there the head takes
half of a small model's step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from train.data.row_tokens import IGNORE_INDEX


@contextmanager
def labelled_positions_only(decoder: nn.Module, labels: Tensor) -> Iterator[Tensor]:
    """Make `decoder` return the hidden states [1, n, width] of the n positions whose next token is labelled.

    Args:
        decoder: the model without its head.
        labels: [rows, length].

    Yields:
        The labels [1, n] of these positions: the `shift_labels` of TRL's fused head, which it does not shift again.
    """
    labelled = labels[:, 1:] != IGNORE_INDEX

    def select(module: nn.Module, args: tuple, output: BaseModelOutputWithPast) -> BaseModelOutputWithPast:
        states = cast(Tensor, output.last_hidden_state)
        output.last_hidden_state = states[:, :-1][labelled][None]
        return output

    hook = decoder.register_forward_hook(select)
    try:
        yield labels[:, 1:][labelled][None]
    finally:
        hook.remove()
