"""One training stage, from settings to final model: assemble or load, open the rows, train, save."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from transformers import AutoConfig, AutoProcessor, PreTrainedModel, PrinterCallback, TrainerCallback
from trl import SFTConfig
from trl.trainer.utils import maybe_gather_lm_head_ctx

from modeling_aligned_llava.errors import Stopped, UserError
from modeling_aligned_llava.inspection.norm_parameters import alignment_norm, norm_parameters
from modeling_aligned_llava.inspection.parameter_parts import Parts
from modeling_aligned_llava.loading.build_once import waiting_lock
from modeling_aligned_llava.loading.checkpoint import end_tokens, load_part
from train.arguments.parse import RunArguments, parse_arguments
from train.data.collator import ImageTextCollator
from train.data.family_rows import FamilyCollator, FamilyRows
from train.data.row_images import RowImages, SetEpoch
from train.data.sources import read_sources
from train.data.stage_rows import open_rows
from train.data.stage_tokenization import row_encoder
from train.data.tokenization import RowEncoder
from train.monitoring.gradient_ledger import GradientLedger
from train.monitoring.log import LossLog, ProgressBar
from train.monitoring.probes import Collator, LayerProbe, first_rows
from train.monitoring.stop_signal import StopOnSignal
from train.optimization.finite_steps import FiniteSteps
from train.optimization.lora import add_adapters, describe_adapters, merge_adapters, modules_beside, write_adapters
from train.optimization.movement import Movement, not_moved
from train.optimization.parameter_groups import ParameterGroup, freeze, group_parameters
from train.optimization.trainer import AlignedSFTTrainer
from train.stage_folder import AUTO, StageFolder, peek_settings, say, write_json
from train.starting_model import load_start, starting_folder, whole_models


if TYPE_CHECKING:
    from peft import LoraModel


def run_stage(argv: list[str], change: Callable[[PreTrainedModel], list[TrainerCallback]] = lambda model: []) -> None:
    """Run the stage that the command line describes, from wherever an earlier start left it.

    Args:
        change: called with the model before training; the trainer gets the callbacks that it returns.

    Raises:
        UserError: settings, data or the starting checkpoint are not usable, or memory does not suffice.
    """
    run, training = parse_arguments(argv)
    folder, settings = StageFolder(str(training.output_dir)), peek_settings(argv) or {}
    if settings.get("bf16") == AUTO:
        settings["bf16"] = training.bf16
    with _only_run_in(folder, training):
        _check_settings(folder, settings)
        if folder.is_complete():
            if training.process_index == 0:
                say(folder.already_done(settings))
        else:
            _run_stage(run, training, folder, settings, change)


@contextmanager
def _only_run_in(folder: StageFolder, training: SFTConfig) -> Iterator[None]:
    """Wait for another run that trains in the folder; the first of our processes waits for all."""

    def wait() -> None:
        say(f"another run trains in {folder.path}; waiting for it")

    with waiting_lock(folder.path, wait) if training.process_index == 0 else nullcontext():
        PartialState().wait_for_everyone()
        yield


def _run_stage(
    run: RunArguments,
    training: SFTConfig,
    folder: StageFolder,
    settings: dict[str, Any],
    change: Callable[[PreTrainedModel], list[TrainerCallback]],
) -> None:
    sources = read_sources(run.data.data_path, run.data.image_folder)
    with training.main_process_first(local=False), whole_models(training):  # transformers saves on the first only
        source = starting_folder(run, folder.path, training.seed, sources)
    config, processor = load_part(AutoConfig, source), load_part(AutoProcessor, source)
    encoder = row_encoder(run, training, config, processor)
    model = load_start(run, training, source, processor, sources)
    _stop_after_answers(model, processor.tokenizer, encoder)
    adapters = None
    if run.model.lora:
        assert isinstance(run.model.lora, dict)
        adapters = add_adapters(model, run.model.lora, training.seed)
    if run.model.attn_implementation is not None:
        model.get_decoder().set_attn_implementation(run.model.attn_implementation)
    groups = group_parameters(model, run.optimization.rates, run.optimization.frozen)
    freeze(model, groups, torch.bfloat16 if training.bf16 else torch.float32)
    rows = open_rows(run, training, encoder, sources)
    folder.check_rows(rows.data.fingerprint(), run.data.data_path)

    trainer = _build_trainer(run, training, model, processor, groups, rows, encoder)
    for callback in change(model):
        trainer.add_callback(callback)
    movement = Movement(trainer, groups)
    trainer.add_callback(movement)
    _describe(trainer, run, groups)
    if trainer.is_world_process_zero():
        _try_saving(model, processor)
        folder.record_settings(settings, rows.data.fingerprint())
        folder.drop_torn_checkpoints()
    trainer.accelerator.wait_for_everyone()
    checkpoint = folder.last_checkpoint()
    if checkpoint is not None:
        _check_processes(trainer, checkpoint)
        _say(trainer, f"resuming from {checkpoint}")
    stop = StopOnSignal()
    trainer.add_callback(stop)
    try:
        with stop:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"step {trainer.state.global_step + 1} ran out of memory: start again with a smaller "
            "--per_device_train_batch_size (the global batch stays the same) or --gradient_checkpointing true, "
            "and the run continues from its last checkpoint"
        ) from error
    if stop.stopped:
        if trainer.is_world_process_zero():
            raise Stopped(stop.number, f"the same command continues from {folder.last_checkpoint()}")
        return
    moved, unmoved = movement.compare()
    for line in moved:
        _say(trainer, line)
    if adapters is not None and run.model.merge_adapters:
        merge_adapters(adapters, _final_dtype(run))
        adapters = None
    _save_final(trainer, folder, run, adapters)
    if unmoved is not None:
        raise not_moved(unmoved, trainer.state.global_step)
    _say(trainer, f"{folder.path}: done")


def _stop_after_answers(model: PreTrainedModel, tokenizer: Any, encoder: RowEncoder) -> None:
    """Let generation end at the token that ends the answers of the rows: the model learns it, and a
    generation_config.json that does not name it would let answers run on.
    """
    config, ending = model.generation_config, encoder.ending()
    if config is not None and ending is not None:
        token, known = tokenizer.convert_tokens_to_ids(ending[0]), end_tokens(config)
        if token not in known:
            config.eos_token_id = [*known, token]


def _try_saving(model: PreTrainedModel, processor: Any) -> None:
    """Save everything but the weights once, so that nothing stops the save after training.

    Raises:
        UserError: something would.
    """
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):  # without its bar
        try:
            model.save_pretrained(folder, state_dict={})
            processor.save_pretrained(folder)
        except Exception as error:  # transformers checks what it writes, and raises anything
            raise UserError(f"the trained model could not be saved: {' '.join(str(error).split())}") from error


def _check_settings(folder: StageFolder, settings: dict) -> None:
    if changes := folder.changed_settings(settings):
        raise UserError(
            f"{folder.path} was started with other settings ({'; '.join(changes)}): "
            "remove it or choose another --output_dir"
        )


def _check_processes(trainer: AlignedSFTTrainer, checkpoint: Path) -> None:
    """DeepSpeed keeps the optimizer as one file per process, and cannot redistribute it."""
    written = len(list(checkpoint.glob("global_step*/*zero_pp_rank_*_optim_states.pt")))
    running = trainer.args.world_size
    if trainer.is_deepspeed_enabled and written != running:
        raise UserError(
            f"{checkpoint} was written by {written} processes, and DeepSpeed resumes on the same number only: start "
            f"{written} instead of {running}, or train with FSDP2"
        )


def _build_trainer(
    run: RunArguments,
    training: SFTConfig,
    model: PreTrainedModel,
    processor: Any,
    groups: list[ParameterGroup],
    rows: RowImages,
    encoder: RowEncoder,
) -> AlignedSFTTrainer:
    output = Path(str(training.output_dir))
    collator: Collator
    if isinstance(encoder, FamilyRows):
        collator = FamilyCollator(encoder, rows)
    else:
        collator = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, rows)
    trainer = AlignedSFTTrainer(
        model=model,
        args=training,
        train_dataset=rows.data.dataset,
        eval_dataset=rows.data.evaluation,
        data_collator=collator,
        processing_class=processor,
        callbacks=[SetEpoch(rows), *_monitoring(run, output, collator, rows, processor.tokenizer)],
        parameter_groups=groups,
        clip_by_part=run.optimization.clip_by_part,
        ledger=GradientLedger(output / "gradients.jsonl", run.optimization.clip_by_part, Parts.of(model)),
        finite_steps=FiniteSteps(output / "skipped_steps.jsonl", run.optimization.max_skipped_steps),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _monitoring(
    run: RunArguments, output: Path, collator: Collator, rows: RowImages, tokenizer: Any
) -> list[TrainerCallback]:
    callbacks: list[TrainerCallback] = [
        LossLog(output / "log.jsonl"),
        ProgressBar(f"{run.model.method} {output.name}"),
    ]
    if run.monitoring.probe_rows:
        probed = first_rows(rows.data.evaluation or rows.data.dataset, run.monitoring.probe_rows)
        callbacks.append(LayerProbe(output / "probe.jsonl", collator, probed, tokenizer))
    return callbacks


def _describe(trainer: AlignedSFTTrainer, run: RunArguments, groups: list[ParameterGroup]) -> None:
    training = trainer.args
    _say(
        trainer,
        f"global batch {run.optimization.global_batch_size} = {training.per_device_train_batch_size} rows x "
        f"{training.world_size} processes x {training.gradient_accumulation_steps} accumulation steps",
    )
    _say(trainer, f"matrix products in {'bfloat16' if training.bf16 else 'float32'}")
    for group in groups:
        _say(trainer, str(group))
    if run.model.lora:
        model = trainer.accelerator.unwrap_model(trainer.model)
        _say(trainer, describe_adapters(model, run.optimization.frozen))
        if not run.model.merge_adapters:
            modules_beside(model)  # its error before training


def _final_dtype(run: RunArguments) -> torch.dtype:
    return torch.bfloat16 if run.model.save_dtype == "bfloat16" else torch.float32


def _save_final(
    trainer: AlignedSFTTrainer, folder: StageFolder, run: RunArguments, adapters: "LoraModel | None"
) -> None:
    """Move the final model, or what was trained of it, into the stage's folder.

    The marker comes last, so an interrupted save is repeated.
    """
    unfinished = folder.path / ".final"
    trainer.only = None if adapters is None else modules_beside(trainer.accelerator.unwrap_model(trainer.model))
    trainer.save_final_model(str(unfinished), _final_dtype(run))
    model = trainer.accelerator.unwrap_model(trainer.model)
    norm = alignment_norm(model)
    with maybe_gather_lm_head_ctx(*(norm.parameters() if norm else ())):  # TRL's, for ZeRO-3: any tensors
        record = norm_parameters(model)  # on every process, because FSDP2 gathers too
    if not trainer.is_world_process_zero():
        return
    write_json(unfinished / "norm_parameters.json", record)
    config = json.loads((unfinished / "config.json").read_text(encoding="utf-8"))
    config.pop("use_cache", None)  # the trainer turns it off for training, not for users of the model
    for part in (config, config.get("text_config"), config.get("vision_config")):
        if part is not None:
            part["dtype"] = run.model.save_dtype
    write_json(unfinished / "config.json", config)
    if adapters is not None:
        write_adapters(unfinished, adapters, str(run.model.model_name_or_path))
    for pickled in unfinished.glob("*.bin"):  # training_args.bin
        pickled.unlink()
    for file in sorted(unfinished.iterdir(), key=lambda file: file.name == "config.json"):
        os.replace(file, folder.path / file.name)
    done = {"method": run.model.method, "seed": trainer.args.seed, "steps": trainer.state.global_step}
    folder.mark_complete(done | _source_of(run.model.language_model))


def _source_of(language_model: str | None) -> dict[str, Any]:
    """What a folder of weights says of itself in `source.json` (name, licence, precision), for the model card."""
    source = Path(language_model or "") / "source.json"
    return {"language_model_source": json.loads(source.read_text(encoding="utf-8"))} if source.is_file() else {}


def _say(trainer: AlignedSFTTrainer, text: str) -> None:
    if trainer.is_world_process_zero():
        say(text)
