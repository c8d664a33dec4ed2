"""One training stage, from top to bottom: settings, start, rows, model, optimizer, train, save."""

import json
import os
import pickle  # its error  # nosec B403
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import AutoConfig, AutoProcessor, PreTrainedModel, PrinterCallback, TrainerCallback
from trl.trainer.utils import maybe_gather_lm_head_ctx

from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.errors import Stopped, UserError, errors_named
from modeling_aligned_llava.inspection.norm_parameters import alignment_norm, norm_parameters
from modeling_aligned_llava.inspection.parameter_parts import Parts
from modeling_aligned_llava.loading.checkpoint import load_part
from modeling_aligned_llava.loading.files import waiting_lock, write_json
from train.data.family_tokens import FamilyCollator, FamilyTokens
from train.data.images import RowImages, SetEpoch
from train.data.llava_tokens import ImageTextCollator
from train.data.prepared import TrainingData, first_texts, open_training_data, row_lengths
from train.data.quarantine import Quarantine
from train.data.sources import read_sources
from train.data.stage_tokens import row_tokens
from train.monitoring.gradient_ledger import GradientLedger
from train.monitoring.log import LossLog, ProgressBar
from train.monitoring.probes import Collator, LayerProbe, first_rows
from train.monitoring.stop_signal import StopOnSignal
from train.optimization.faster_layers import compile_layers, compiles_layers
from train.optimization.finite_steps import FiniteSteps
from train.optimization.lora import add_adapters, describe_adapters, merge_adapters, modules_beside, write_adapters
from train.optimization.movement import Movement
from train.optimization.parameter_groups import freeze, group_parameters
from train.optimization.trainer import AlignedSFTTrainer
from train.parse import Settings, parse_settings
from train.settings import AUTO, read_settings
from train.stage_folder import StageFolder, say
from train.start import checkpoint_of_method, load_model, stop_after_answers, try_saving, whole_models
from train.step_plan import describe_step, plan_step


if TYPE_CHECKING:
    from peft import LoraModel

Change = Callable[[PreTrainedModel], list[TrainerCallback]]


def run_stage(argv: list[str], change: Change = lambda model: []) -> None:
    """Run the stage that the command line describes, from wherever an earlier start left it.

    Args:
        change: called with the model before training; the trainer gets the callbacks that it returns.

    Raises:
        UserError: settings, data or the starting checkpoint are not usable, or memory does not suffice.
    """
    given = read_settings(argv)
    settings = parse_settings(given)
    training, folder = settings.training, StageFolder(str(settings.training.output_dir))
    if given.get("bf16") == AUTO:
        given["bf16"] = training.bf16

    def wait() -> None:
        say(f"another run trains in {folder.path}; waiting for it")

    with waiting_lock(folder.path, wait) if training.process_index == 0 else nullcontext():
        PartialState().wait_for_everyone()  # the first of our processes waits for all
        folder.check_settings(given)
        if not folder.is_complete():
            _train(settings, folder, given, change)
        elif training.process_index == 0:
            say(folder.already_done(given))


def _train(settings: Settings, folder: StageFolder, given: dict[str, Any], change: Change) -> None:
    model_settings, data, optimization, monitoring, training = settings
    lora: Any = model_settings.lora
    method, fields, output = model_settings.method, model_settings.config_fields, folder.path
    is_first = training.process_index == 0

    # 1. The checkpoint to start from.
    sources = read_sources(data.data_path, data.image_folder)
    texts = first_texts(sources, data.data_cache)
    with training.main_process_first(local=False), whole_models(training):  # transformers saves on the first only
        if model_settings.model_name_or_path is not None:
            start = checkpoint_of_method(model_settings.model_name_or_path, fields)
        else:
            start = assemble(
                str(model_settings.vision_tower),
                str(model_settings.language_model),
                output / "assembled",
                fields=fields,
                seed=training.seed,
                chat_template=model_settings.chat_template,
                texts=texts,
                exist_ok=True,
            )
    config, processor = load_part(AutoConfig, start), load_part(AutoProcessor, start)

    # 2. Rows: checked, as tokens, split into those to train on and those held out.
    tokens = row_tokens(config, processor, data.prompt_format, training.max_length, model_settings.merge_adapters)
    split = open_training_data(sources, tokens, data.data_cache, training.seed, monitoring.eval_rows)
    quarantine = Quarantine(output / "quarantine.jsonl", split.opened, data.bad_rows_limit)
    if is_first:
        quarantine.begin(split.bad_rows)
        for line in _describe_rows(split, quarantine, data.data_path, monitoring.eval_rows, tokens.ending()):
            say(line)
    if not len(split.dataset):
        raise UserError(f"{data.data_path}: there is no row to train on; see {quarantine.path}")
    rows, fingerprint = RowImages(split, quarantine, training.seed), split.fingerprint()
    folder.check_rows(fingerprint, data.data_path)
    collator: Collator
    if isinstance(tokens, FamilyTokens):
        collator = FamilyCollator(tokens, rows)
    else:
        collator = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, rows)

    # 3. The model, with its norm and perhaps adapters.
    model = load_model(start, config, training, method, fields, processor.tokenizer, texts)
    stop_after_answers(model, processor.tokenizer, tokens.ending())
    adapters = add_adapters(model, lora, training.seed) if lora else None
    if model_settings.attn_implementation is not None:
        with errors_named("attn_implementation", ValueError, ImportError):  # of this name, or its package
            model.get_decoder().set_attn_implementation(model_settings.attn_implementation)

    # 4. The optimizer: a learning rate for each group of parameters, and the trainer that has one.
    groups = group_parameters(model, optimization.rates, optimization.frozen)
    freeze(model, groups, torch.bfloat16 if training.bf16 else torch.float32)
    if model_settings.use_kernels:
        with errors_named("use_kernels", Exception):  # no package, no network, no kernel for this GPU
            model.set_use_kernels(True)
    micro_batches = plan_step(model, row_lengths(split.dataset), optimization, training)
    trainer = AlignedSFTTrainer(
        model=model,
        args=training,
        train_dataset=split.dataset,
        eval_dataset=split.evaluation,
        data_collator=collator,
        processing_class=processor,
        callbacks=[
            SetEpoch(rows, micro_batches),
            LossLog(output / "log.jsonl"),
            ProgressBar(f"{method} {output.name}"),
        ],
        parameter_groups=groups,
        clip_by_part=optimization.clip_by_part,
        micro_batches=micro_batches,
        ledger=GradientLedger(output / "gradients.jsonl", optimization.clip_by_part, Parts.of(model)),
        finite_steps=FiniteSteps(output / "skipped_steps.jsonl", optimization.max_skipped_steps),
    )
    trainer.remove_callback(PrinterCallback)
    if monitoring.probe_rows:
        probed = first_rows(split.evaluation or split.dataset, monitoring.probe_rows)
        trainer.add_callback(LayerProbe(output / "probe.jsonl", collator, probed, processor.tokenizer))
    movement, stop = Movement(trainer, groups), StopOnSignal()
    for callback in (*change(model), movement, stop):
        trainer.add_callback(callback)
    described = [
        describe_step(micro_batches, optimization.global_batch_size, training),
        f"matrix products in {'bfloat16' if training.bf16 else 'float32'}",
        *map(str, groups),
    ]
    if compiles_layers(model_settings.compile_layers, training):
        described.append(compile_layers(model, training.device))
    if adapters is not None:
        described.append(describe_adapters(model, optimization.frozen, model_settings.merge_adapters))
    if is_first:
        say("\n".join(described))
        try_saving(model, processor)
        folder.begin(given, fingerprint)
    trainer.accelerator.wait_for_everyone()

    # 5. Train, from the last checkpoint if there is one.
    checkpoint = folder.last_checkpoint()
    if checkpoint is not None:
        _check_processes(trainer, checkpoint)
        if is_first:
            say(f"resuming from {checkpoint}")
    try:
        with stop:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"step {trainer.state.global_step + 1} ran out of memory: start again with a smaller "
            f"--{'per_device_train_batch_size' if micro_batches is None else 'micro_batch_tokens'} (the global batch "
            "stays the same) or --gradient_checkpointing true, and the run continues from its last checkpoint"
        ) from error
    except ValueError as error:
        if "features and image tokens do not match" not in str(error):
            raise
        raise UserError(
            f"{start}: its processor writes other visual tokens than the model has ({error}): compare patch_size, "
            "vision_feature_select_strategy and num_additional_image_tokens of both"
        ) from error
    except (pickle.UnpicklingError, EOFError, SafetensorError, RuntimeError) as error:
        if checkpoint is None or (isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error)):
            raise
        reason = str(error).strip().partition("\n")[0][:200]
        raise UserError(
            f"{checkpoint}: its training state is damaged or would run code, and was not read ({reason}); remove this "
            "folder, and the run continues from the checkpoint before"
        ) from error
    if stop.stopped:
        if is_first:
            raise Stopped(stop.number, f"the same command continues from {folder.last_checkpoint()}")
        return
    moved, unmoved = movement.compare()
    for line in moved if is_first else ():
        say(line)

    # 6. Save: the whole model or, with adapters kept apart, what was trained of it.
    dtype = torch.bfloat16 if model_settings.save_dtype == "bfloat16" else torch.float32
    if adapters is not None and model_settings.merge_adapters:
        merge_adapters(adapters, dtype)
        adapters = None
    written = _save(trainer, output / ".final", dtype, adapters, str(model_settings.model_name_or_path))
    if is_first:
        for file in sorted(written.iterdir(), key=lambda file: file.name == "config.json"):
            os.replace(file, output / file.name)
        done = {"method": method, "seed": training.seed, "steps": trainer.state.global_step}
        folder.mark_complete(done | _source_of(model_settings.language_model))  # last: an interrupted save is repeated
    if unmoved is not None:
        raise UserError(
            f"{unmoved} should train and has not moved in {trainer.state.global_step} steps (the model is saved): "
            "look at the rows, at learning_rates and at warmup_steps"
        )
    if is_first:
        say(f"{output}: done")


def _describe_rows(
    rows: TrainingData, quarantine: Quarantine, name: str, eval_rows: int, ending: tuple[str, str] | None
) -> Iterator[str]:
    yield f"{name}: {len(rows.dataset)} rows; {quarantine.summary()}"
    if rows.evaluation is not None:
        held = len(rows.evaluation)
        why = "" if held == eval_rows else f" instead of {eval_rows}: rows of the same image or text stay together"
        yield f"{held} rows held out{why}"
    if ending is not None:
        yield f"end token of an answer: {ending[0]!r}, {ending[1]}"


def _check_processes(trainer: AlignedSFTTrainer, checkpoint: Path) -> None:
    """DeepSpeed keeps the optimizer as one file per process, and cannot redistribute it."""
    written = len(list(checkpoint.glob("global_step*/*zero_pp_rank_*_optim_states.pt")))
    running = trainer.args.world_size
    if trainer.is_deepspeed_enabled and written != running:
        raise UserError(
            f"{checkpoint} was written by {written} processes, and DeepSpeed resumes on the same number only: start "
            f"{written} instead of {running}, or train with FSDP2"
        )


def _save(
    trainer: AlignedSFTTrainer, unfinished: Path, dtype: torch.dtype, adapters: "LoraModel | None", source: str
) -> Path:
    """Write the final model, or adapters of the model `source` with what was trained beside them, into a folder."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    trainer.save_final_model(str(unfinished), dtype, None if adapters is None else modules_beside(model))
    norm = alignment_norm(model)
    with maybe_gather_lm_head_ctx(*(norm.parameters() if norm else ())):  # TRL's, for ZeRO-3: any tensors
        record = norm_parameters(model)  # on every process, because FSDP2 gathers too
    if not trainer.is_world_process_zero():
        return unfinished
    write_json(unfinished / "norm_parameters.json", record)
    config = json.loads((unfinished / "config.json").read_text(encoding="utf-8"))
    config.pop("use_cache", None)  # the trainer turns it off for training, not for users of the model
    for part in (config, config.get("text_config"), config.get("vision_config")):
        if part is not None:
            part["dtype"] = str(dtype).removeprefix("torch.")
    write_json(unfinished / "config.json", config, indent=2)
    if adapters is not None:
        write_adapters(unfinished, adapters, source)
    return unfinished


def _source_of(language_model: str | None) -> dict[str, Any]:
    """What a folder of weights says of itself in `source.json` (name, licence, precision), for the model card."""
    source = Path(language_model or "") / "source.json"
    return {"language_model_source": json.loads(source.read_text(encoding="utf-8"))} if source.is_file() else {}
