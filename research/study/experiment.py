"""`train.sft` with what only our studies change.

LAUNCH="python -m research.study.experiment --bypassed_layers 0" train/run.sh ...
"""

import argparse
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback

from modeling_aligned_llava.errors import run_main
from research.study.layer_bypass import bypass_layers
from research.study.norm_storage import RoundedNorm
from train.stage import run_stage


SETTINGS = ("bypassed_layers", "norm_storage", "visual_factor")


class ScaledProjector(TrainerCallback):
    """Visual tokens times a constant outside the weights, so that steps stay as large relative to these.

    At the end the constant becomes part of the last layer.
    """

    def __init__(self, projector: Any, factor: float):
        self.projector, self.factor = projector, factor
        self.hook = projector.register_forward_hook(lambda module, inputs, tokens: tokens * factor)

    @torch.no_grad()
    def on_train_end(self, args, state, control, **kwargs):
        self.hook.remove()
        for parameter in self.projector.linear_2.parameters():
            parameter.mul_(self.factor)


def change(options: argparse.Namespace, model: PreTrainedModel) -> list[TrainerCallback]:
    """Change the model as the options say."""
    if options.bypassed_layers:
        bypass_layers(model, options.bypassed_layers)
    callbacks: list[TrainerCallback] = [RoundedNorm()] if options.norm_storage == "bfloat16" else []
    if options.visual_factor != 1.0:
        callbacks.append(ScaledProjector(model.base_model.multi_modal_projector, options.visual_factor))
    return callbacks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.study.experiment", allow_abbrev=False)
    parser.add_argument(
        "--bypassed_layers",
        type=int,
        nargs="*",
        default=[],
        help="decoder layers that visual tokens skip; the saved model does not skip them, so only losses count",
    )
    parser.add_argument(
        "--norm_storage",
        choices=("float32", "bfloat16"),
        default="float32",
        help="precision to which gain and bias of the norm are rounded after every step",
    )
    parser.add_argument(
        "--visual_factor",
        type=float,
        default=1.0,
        help="constant that the tokens of a projector without norm are given",
    )
    parser.add_argument("-m", dest="program", help=argparse.SUPPRESS)  # train.sft, which train/run.sh would start
    options, stage = parser.parse_known_args()
    run_stage(stage, partial(change, options))


if __name__ == "__main__":
    run_main(main)
