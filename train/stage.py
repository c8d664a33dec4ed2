"""One training stage from settings to final model: assemble or load, tokenize, train, save."""

import json
import os
from dataclasses import replace
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset
from transformers import AutoProcessor, PrinterCallback, ProcessorMixin, TrainerCallback
from transformers.utils import logging
from trl import SFTConfig
from trl.trainer.utils import maybe_gather_lm_head_ctx

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration, method_fields
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.chat_templates import chat_template
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.norm_parameters import norm_parameters
from modeling_aligned_llava.loading.checkpoint import load_strict
from train.arguments import RunArguments, parse_arguments
from train.data.collator import ImageTextCollator, OpenImages
from train.data.feature_cache import FeatureCache
from train.data.prepared import first_images, open_training_data
from train.data.quarantine import Quarantine
from train.data.row_images import RowImages, SetEpoch
from train.data.sources import Source, read_sources
from train.data.streaming import first_streamed, images_of_stream, open_stream
from train.data.tokenization import Tokenization
from train.monitoring.gradient_ledger import GradientLedger
from train.monitoring.log import JsonLines, ProgressBar, StopOnBrokenLoss
from train.monitoring.probes import LayerProbe, SampleAnswers, first_rows
from train.optimization.lora import add_adapters, merge_adapters
from train.optimization.parameter_groups import freeze, group_parameters
from train.optimization.trainer import AlignedSFTTrainer
from train.stage_folder import StageFolder, peek_settings, say, write_json


def run_stage(argv: list[str]) -> None:
    """Run the stage that the command line describes, from wherever an earlier start left it.

    Raises:
        UserError: settings, data or the checkpoint to go on from are not usable.
    """
    run, training = parse_arguments(argv)
    logging.disable_progress_bar()  # a bar for each of a dozen small files
    settings = peek_settings(argv) or {}
    folder = StageFolder(str(training.output_dir))
    if changes := folder.changed_settings(settings):
        raise UserError(
            f"{folder.path} was started with other settings ({'; '.join(changes)}): "
            "remove it or choose another --output_dir"
        )
    sources = read_sources(run.data_path, run.image_folder)
    with training.main_process_first(desc="assembly"):
        source = _source_checkpoint(run, folder, training.seed, sources)
    model = load_strict(AlignedLlavaForConditionalGeneration, source, unused="", dtype=torch.float32)
    if run.lora:
        assert isinstance(run.lora, dict)
        add_adapters(model, run.lora, training.seed, torch.bfloat16 if training.bf16 else torch.float32)
    processor = AutoProcessor.from_pretrained(source)
    trainer = _build_trainer(run, training, model, processor, sources)
    if trainer.is_world_process_zero():
        folder.record_settings(settings)
        folder.drop_torn_checkpoints()
    trainer.accelerator.wait_for_everyone()

    checkpoint = folder.last_checkpoint()
    if checkpoint is not None:
        _say(trainer, f"going on from {checkpoint}")
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    _save_final(trainer, folder, run, training)
    _say(trainer, f"{folder.path}: done")


def _source_checkpoint(run: RunArguments, folder: StageFolder, seed: int, sources: list[Source]) -> Path:
    """The checkpoint that the stage starts from: assembled from backbones, or an earlier stage's of the same arm."""
    if run.model_name_or_path is None:
        assembled = folder.path / "assembled"
        if not assembled.exists():
            folder.path.mkdir(parents=True, exist_ok=True)
            assert run.vision_tower is not None and run.language_model is not None
            assemble(
                run.vision_tower,
                run.language_model,
                assembled,
                fields=method_fields(run.method),
                seed=seed,
                chat_template=run.chat_template,
                images=first_streamed(sources) if run.streaming else first_images(sources, run.data_cache),
            )
        return assembled
    source = Path(run.model_name_or_path)
    if not (source / "config.json").is_file():
        raise UserError(f"model_name_or_path: there is no checkpoint in {source}; run stage 1 first")
    try:
        made_for = AlignedLlavaConfig.from_pretrained(source).method
    except (OSError, ValueError) as error:
        raise UserError(f"model_name_or_path: {' '.join(str(error).split())}") from error
    if made_for != run.method:
        raise UserError(f"{source} belongs to method {made_for}, not to {run.method}")
    return source


def _build_trainer(
    run: RunArguments,
    training: SFTConfig,
    model: AlignedLlavaForConditionalGeneration,
    processor: ProcessorMixin,
    sources: list[Source],
) -> AlignedSFTTrainer:
    tokenization = Tokenization(
        processor.tokenizer,
        template=chat_template("plain") if run.prompt_format == "plain" else str(processor.chat_template),
        image_token_id=model.config.image_token_id,
        image_tokens=model.config.image_seq_length,
        max_length=training.max_length,
    )
    rows, held_out, open_images, callbacks = _training_rows(run, training, tokenization, sources)
    assert isinstance(run.learning_rates, dict)
    groups = group_parameters(model, run.learning_rates, run.frozen)
    freeze(model, groups)
    output = Path(str(training.output_dir))
    if run.attn_implementation is not None:
        model.model.language_model.set_attn_implementation(run.attn_implementation)
    cache = _feature_cache(run, training, model, processor)
    tokenizer = processor.tokenizer
    plain = ImageTextCollator(processor.image_processor, tokenizer.pad_token_id, open_images)
    callbacks += [
        JsonLines(output / "log.jsonl"),
        ProgressBar(f"{run.method} {output.name}"),
        StopOnBrokenLoss(),
    ]
    if run.probe_rows:
        probed = first_rows(rows if held_out is None else held_out, run.probe_rows)
        callbacks.append(LayerProbe(output / "probe.jsonl", plain, probed))
    if held_out is not None and run.sample_rows:
        answered = first_rows(held_out, run.sample_rows)
        callbacks.append(SampleAnswers(output / "samples.jsonl", plain, answered, tokenizer))
    trainer = AlignedSFTTrainer(
        model=model,
        args=training,
        train_dataset=rows,
        eval_dataset=held_out,
        data_collator=replace(plain, packed=run.packed_rows, feature_cache=cache),
        processing_class=processor,
        callbacks=callbacks,
        parameter_groups=groups,
        compact_head=run.compact_head,
        feature_cache=cache,
        ledger=GradientLedger(output / "gradients.jsonl"),
    )
    trainer.remove_callback(PrinterCallback)
    _say(
        trainer,
        f"global batch {run.global_batch_size} = {training.per_device_train_batch_size} rows x "
        f"{training.world_size} processes x {training.gradient_accumulation_steps} accumulation steps",
    )
    for group in groups:
        _say(trainer, str(group))
    return trainer


def _training_rows(
    run: RunArguments, training: SFTConfig, tokenization: Tokenization, sources: list[Source]
) -> tuple[Dataset | IterableDataset, Dataset | None, OpenImages, list[TrainerCallback]]:
    """Rows to train on, rows held out, what opens their images, and the callbacks that needs.

    Rows that cannot be used are put on record.
    """
    path = Path(str(training.output_dir)) / "quarantine.jsonl"
    if run.streaming:
        quarantine = Quarantine(path, None, run.bad_rows_limit)
        if training.process_index == 0:
            quarantine.begin([])
        return open_stream(sources, tokenization, quarantine, training.seed), None, images_of_stream, []
    with training.main_process_first(desc="data"):
        data = open_training_data(sources, tokenization, run.data_cache, training.seed)
    quarantine = Quarantine(path, data.opened, run.bad_rows_limit)
    if training.process_index == 0:
        quarantine.begin(data.bad_rows)
        say(f"{run.data_path}: {len(data.dataset)} rows; {quarantine.summary()}")
    if not len(data.dataset):
        raise UserError(f"{run.data_path}: there is no row to train on; see {path}")
    held_out = None
    if run.held_out:
        if run.held_out >= len(data.dataset):
            raise UserError(f"held_out {run.held_out} leaves nothing of {len(data.dataset)} rows to train on")
        parts = data.dataset.train_test_split(test_size=run.held_out, seed=training.seed)
        data, held_out = replace(data, dataset=parts["train"]), parts["test"]
    row_images = RowImages(data, quarantine, training.seed)
    return data.dataset, held_out, row_images, [SetEpoch(row_images)]


def _feature_cache(
    run: RunArguments, training: SFTConfig, model: AlignedLlavaForConditionalGeneration, processor: ProcessorMixin
) -> FeatureCache | None:
    """The cache that the settings ask for.

    Raises:
        UserError: the tower is trained, or sharded.
    """
    if run.feature_cache is None:
        return None
    tower, layer = model.model.vision_tower, model.config.vision_feature_layer
    if not isinstance(layer, int):
        raise UserError(f"feature_cache keeps one layer of the vision tower; this model reads {layer}")
    if any(parameter.requires_grad for parameter in tower.parameters()):
        raise UserError("feature_cache: the vision tower is trained here, its features change at every step")
    if training.deepspeed or training.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true":
        raise UserError("feature_cache works on one process or with DDP, not where the tower is sharded")
    share = run.feature_cache_gb * 1e9 / training.world_size
    precision = "bfloat16" if training.bf16 else "float32"
    return FeatureCache(run.feature_cache, share, tower, layer, processor.image_processor, precision)


def _save_final(trainer: AlignedSFTTrainer, folder: StageFolder, run: RunArguments, training: SFTConfig) -> None:
    """Write the final model into the stage's folder; the marker comes last, so a torn save is done again."""
    unfinished = folder.path / ".final"
    if run.lora:
        merge_adapters(trainer.accelerator.unwrap_model(trainer.model))
    trainer.save_model(str(unfinished))
    model = trainer.accelerator.unwrap_model(trainer.model)
    with maybe_gather_lm_head_ctx(*model.model.multi_modal_projector.parameters()):  # TRL's, for ZeRO-3: any tensors
        record = norm_parameters(model)  # on every process, because FSDP2 gathers too
    if not trainer.is_world_process_zero():
        return
    write_json(unfinished / "norm_parameters.json", record)
    config = json.loads((unfinished / "config.json").read_text(encoding="utf-8"))
    config.pop("use_cache", None)  # the trainer switches the cache off for itself, not for those who load the model
    write_json(unfinished / "config.json", config)
    for pickled in unfinished.glob("*.bin"):  # training_args.bin
        pickled.unlink()
    for file in sorted(unfinished.iterdir(), key=lambda file: file.name == "config.json"):
        os.replace(file, folder.path / file.name)
    folder.mark_complete({"method": run.method, "seed": training.seed, "steps": trainer.state.global_step})


def _say(trainer: AlignedSFTTrainer, text: str) -> None:
    if trainer.is_world_process_zero():
        say(text)
