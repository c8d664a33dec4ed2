"""TRL's SFTTrainer with a learning rate per parameter group and checkpoints that are known to be complete."""

import shutil
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import PreTrainedModel, ProcessorMixin, TrainerCallback
from transformers.trainer_optimizer import is_optimizer_factory
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import SFTConfig, SFTTrainer

from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.inspection.parameter_parts import Parts, in_norm
from modeling_aligned_llava.loading.files import disk_errors_named, write_json
from modeling_aligned_llava.loading.upstream import require
from train.data.llava_tokens import ImageTextCollator
from train.data.prepared import row_lengths
from train.monitoring.gradient_ledger import GradientLedger
from train.optimization.finite_steps import FiniteSteps
from train.optimization.fsdp2 import set_up_fsdp2
from train.optimization.micro_batch import blank_image, dummy_image, labelled_positions_only, without_padding_mask
from train.optimization.parameter_groups import ParameterGroup
from train.optimization.sampler import LengthGroupedSampler, MicroBatchSampler
from train.stage_folder import checkpoint_marker


require(__name__)


class ClipByPart(TrainerCallback):
    """Scales the gradient of each part (norm, projector, vision, ...) down to the L2 norm `max_norm`, in place.

    So no part decides how much of another is used. Clipping as a whole (the default) multiplies every gradient by one
    factor. With a norm, the gradient of its gain can be most of the total: the projector's is then cut for the gain's
    sake, and by other amounts in other methods.

    Gradients that FSDP2 has sharded are clipped by the norm over all shards.
    """

    def __init__(self, max_norm: float, part_of: Parts):
        self.max_norm, self.part_of = max_norm, part_of

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        parts: dict[str, list[torch.nn.Parameter]] = defaultdict(list)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:  # none is left where the step is skipped
                parts[self.part_of(name)].append(parameter)
        for parameters in parts.values():
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)


class AlignedSFTTrainer(SFTTrainer):
    """`SFTTrainer` for rows that are already tokenized.

    Args:
        parameter_groups: from `group_parameters`; frozen groups are left out of the optimizer.
        clip_by_part: clip the gradient of each part of the model on its own (`ClipByPart`).
        micro_batches: those of a step; otherwise each has `per_device_train_batch_size` rows.
        ledger: receives the gradients before they are clipped. DeepSpeed has none to show.
        finite_steps: checks each step.
        kwargs: those of `SFTTrainer`.
    """

    def __init__(
        self,
        *args: Any,
        parameter_groups: list[ParameterGroup],
        clip_by_part: bool = False,
        micro_batches: MicroBatchSampler | None = None,
        ledger: GradientLedger | None = None,
        finite_steps: FiniteSteps,
        **kwargs: Any,
    ):
        self.parameter_groups = parameter_groups
        self.micro_batches = micro_batches
        self.finite_steps = finite_steps
        self._losses: list[torch.Tensor] = []  # of the current step's micro-batches
        self._step_sums: list[torch.Tensor] = []  # of `_training_loss`, for each of them
        self._logged_sums: list[torch.Tensor] = []  # the same for each step since the last log
        self._skipped = False  # a step since the last log
        with errors_named("settings", ValueError):  # of a loss, of sharding
            super().__init__(*args, **kwargs)
        model = cast(PreTrainedModel, self.model)
        self._has_plain_loss = cast(SFTConfig, self.args).loss_type == "nll" and not self.aux_loss_enabled
        self.blank = blank_image(model, cast(ProcessorMixin, self.processing_class))
        self.max_norm = self.args.max_grad_norm
        if clip_by_part:
            self.args.max_grad_norm = 0.0  # the trainer only measures the whole gradient, before this clips it
            self.add_callback(ClipByPart(self.max_norm, Parts.of(model)))
        if self.is_fsdp_enabled:
            set_up_fsdp2(self.accelerator.state.fsdp_plugin, cast(Any, self.model))
        self.ledger = None if self.is_deepspeed_enabled else ledger
        if self.ledger is not None:
            self.add_callback(self.ledger)
        self.add_callback(finite_steps)

    @property
    def _total_train_tokens(self) -> int:
        """TRL's count for `num_tokens`, kept in the trainer's state: TRL would start from 0 when a run is resumed."""
        return self.state.num_input_tokens_seen

    @_total_train_tokens.setter
    def _total_train_tokens(self, count: int) -> None:
        self.state.num_input_tokens_seen = count

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss, without a mask on a GPU; on a CPU too, its fused head sees only the labelled positions."""
        decoder = cast(PreTrainedModel, self.accelerator.unwrap_model(model)).base_model
        with ExitStack() as stack:
            if "pixel_values" not in inputs and "mm_encoder_outputs" not in inputs:
                stack.enter_context(dummy_image(decoder, self.blank))
            on_cpu = inputs["labels"].device.type == "cpu"
            if not on_cpu and isinstance(self.data_collator, ImageTextCollator):  # it pads on the right
                stack.enter_context(without_padding_mask(decoder))
            if not return_outputs and on_cpu:
                labels = stack.enter_context(labelled_positions_only(decoder, inputs["labels"]))
                inputs = {**inputs, "shift_labels": labels}
            if model.training and not return_outputs and self._has_plain_loss:
                return self._training_loss(model, inputs, num_items_in_batch)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _training_loss(self, model: Any, inputs: dict[str, Any], labelled: torch.Tensor | None) -> torch.Tensor:
        """TRL's loss and metrics, which it reads from the device in each micro-batch: here once a step, by `log`."""
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        count = outputs.label_mask.sum()
        sums = (count, outputs.entropy.detach().sum(), outputs.is_top1.sum(), inputs["attention_mask"].sum())
        self._step_sums.append(torch.stack([value.float() for value in sums]))
        loss = -outputs.log_probs.sum() / torch.as_tensor(count if labelled is None else labelled).clamp(min=1)
        whole = self.args.average_tokens_across_devices and labelled is not None
        return loss * self.accelerator.num_processes if whole else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        """TRL's training step; after the last micro-batch of a step whose loss or gradient is not finite, no gradient
        is left, so that neither weights nor moments change.

        Raises:
            UserError: no further step may be skipped.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss)
        if self.accelerator.sync_gradients:
            self._check_step(model)
            if self.ledger is not None:
                self.ledger.measure(cast(PreTrainedModel, self.model), self.max_norm, self.args, self.state)
        return torch.where(loss.isfinite(), loss, 0.0)  # the trainer's sum would never be finite again

    def _check_step(self, model: torch.nn.Module) -> None:
        losses, self._losses = self._losses, []
        plain = self.accelerator.unwrap_model(model)
        sums, self._step_sums = self._step_sums, []
        if sums:
            step_sums = cast(torch.Tensor, self.accelerator.reduce(torch.stack(sums).sum(0), "sum"))
            self._total_train_tokens += int(step_sums[3])
        if self.finite_steps.are_finite(self.accelerator, plain, losses):
            self._logged_sums += [step_sums] if sums else []
            return
        cause = self.finite_steps.cause(self.accelerator, plain, losses)
        model.zero_grad()
        self.finite_steps.skip(self.state, cause)
        self._skipped = True

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log, without the mean loss of steps of which one was skipped."""
        if "loss" in logs and self._skipped:
            del logs["loss"]
            self._skipped = False
        if "loss" in logs and self._logged_sums:
            count, entropy, correct, _ = torch.stack(self._logged_sums).sum(0).tolist()
            mean = {"entropy": entropy / max(count, 1), "mean_token_accuracy": correct / max(count, 1)}
            logs |= mean | {"num_tokens": self._total_train_tokens}
            self._logged_sums = []
        super().log(logs, start_time)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """One optimizer group per learning rate, or two where weight decay spares biases and norms."""
        if self.optimizer is not None:
            return self.optimizer
        model = cast(PreTrainedModel, self.model if model is None else model)
        parameters = dict(model.named_parameters())
        decayed = set(self.get_decay_parameter_names(model)) if self.args.weight_decay else set()
        groups: list[dict[str, Any]] = []
        for group in self.parameter_groups:
            if group.learning_rate is None:
                continue
            for names, decay in (
                ([n for n in group.names if n in decayed], self.args.weight_decay),
                ([n for n in group.names if n not in decayed], 0.0),
            ):
                if names:
                    params = [parameters[n] for n in names]
                    groups.append({"params": params, "lr": group.learning_rate, "weight_decay": decay})
        assert sum(len(g["params"]) for g in groups) == len([p for p in parameters.values() if p.requires_grad])
        with errors_named("optim", ImportError, ValueError):  # its package is missing, or it wants arguments
            kind, kwargs = self.get_optimizer_cls_and_kwargs(self.args, model)
            if is_optimizer_factory(kind) or kwargs.keys() & {"params", "model", "optimizer_dict"}:
                name = getattr(self.args.optim, "value", self.args.optim)
                raise UserError(f"optim: {name} chooses its own parameters; use another, such as adamw_torch")
            super().create_optimizer(model)
        optimizer = cast(torch.optim.Optimizer, self.optimizer)
        optimizer.param_groups[:] = [{**optimizer.param_groups[0], **group} for group in groups]
        return optimizer

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        with errors_named("lr_scheduler_type, lr_scheduler_kwargs", TypeError, ValueError):
            return super().create_scheduler(*args, **kwargs)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Rows of a step."""
        if self.micro_batches is not None:
            return self.micro_batches.rows.step_size
        return super().get_total_train_batch_size(args)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        if self.micro_batches is not None:
            return self.micro_batches
        strategy = self.args.train_sampling_strategy
        if strategy not in ("group_by_length", "sequential"):
            return super()._get_train_sampler(train_dataset)
        rows = cast(Dataset, self.train_dataset if train_dataset is None else train_dataset)
        step_size = self.args.train_batch_size * self.args.world_size * self.args.gradient_accumulation_steps
        return LengthGroupedSampler(
            row_lengths(rows), step_size, self.args.seed, self.args.dataloader_drop_last, strategy == "sequential"
        )

    def _save_checkpoint(self, model, trial):
        """Save and mark a checkpoint. Only then are older ones removed: transformers does that before all processes
        have written their parts.

        Raises:
            UserError: the disk is full; older checkpoints are kept.
        """
        step = self.state.global_step
        folder = Path(str(self.args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with disk_errors_named(folder):
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                if self.is_world_process_zero():
                    write_json(checkpoint_marker(folder), {"step": step})
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            rotate_checkpoints(str(self.args.output_dir), limit)

    def _init_training_state(self, max_steps, *args, **kwargs):
        done = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.compute_steps(self.args, max_steps)  # logging_steps and so on of this start, not of the checkpoint
        if self.state.global_step >= max_steps:  # stopped before the final save; transformers would train on
            return max_steps, 0  # no epoch is left
        return done

    def _issue_warnings_after_load(self, load_result):
        model = cast(PreTrainedModel, self.accelerator.unwrap_model(self.model))
        if missing := sorted({*load_result.missing_keys} - {*model.all_tied_weights_keys}):
            raise UserError(f"the checkpoint to resume from lacks {missing[0]} and {len(missing) - 1} more tensors")

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint under the names of the modules, by which alone the trainer reads it back; transformers
        saves some families under those of their first release.
        """
        model = cast(Any, self.accelerator.unwrap_model(self.model))
        model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
        try:
            super().save_model(*args, **kwargs)
        finally:
            del model.save_pretrained

    def save_final_model(self, folder: str, dtype: torch.dtype, modules: list[str] | None = None) -> None:
        """Save the model in `dtype`, its norm in float32, or adapters and `modules` alone; called by every process."""
        model = cast(PreTrainedModel, self.accelerator.unwrap_model(self.model))
        with disk_errors_named(folder):
            sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled  # a compiled model would give other names
            tensors = self.accelerator.get_state_dict(self.model_wrapped if sharded else model)
            if not self.args.should_save:
                return
            only = None if modules is None else tuple(f"{module}." for module in modules)
            tied = model.all_tied_weights_keys  # gathered or cast, they are no longer the tensor that they are tied to
            tensors = {
                name: tensor.to(torch.float32 if in_norm(name) else dtype)
                for name, tensor in tensors.items()
                if name not in tied and (only is None or ".lora_" in name or name.startswith(only))
            }
            model.save_pretrained(folder, state_dict=tensors, save_original_format=only is None)
            cast(ProcessorMixin, self.processing_class).save_pretrained(folder)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: TRL's would show a text-generation snippet."""
