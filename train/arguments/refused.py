"""Settings of TRL's `SFTConfig` that would change nothing, or break what a stage promises; each with what to use."""

from collections.abc import Iterable

from modeling_aligned_llava.errors import UserError


REFUSED = {
    "learning_rate": "use learning_rates, a rate for each group of parameters",
    "gradient_accumulation_steps": "use global_batch_size, from which it follows",
    "auto_find_batch_size": "give per_device_train_batch_size; the global batch stays the same",
    "optim_target_modules": "use learning_rates and frozen to choose parameters",
    "remove_unused_columns": "the columns that training needs are known",
    "disable_tqdm": "training shows a progress bar of its own",
    "resume_from_checkpoint": "the same command continues from the last checkpoint in output_dir",
    "ignore_data_skip": "a resumed run reads the rows that are left",
    "data_seed": "use seed, which sets the order of the rows too",
    "shuffle_dataset": "use train_sampling_strategy",
    "truncation_mode": "rows longer than max_length are left out and listed, never cut",
    "chat_template_path": "use chat_template in stage 1, so that training and the saved processor have one template",
    "label_smoothing_factor": "TRL's fused loss does not support it",
    "use_liger_kernel": "TRL's own fused loss is used",
    "model_init_kwargs": "use attn_implementation; weights are read in float32",
    "trust_remote_code": "the model's own code is this package",
    "save_only_model": "without the optimizer's state a stopped run could not continue",
    "load_best_model_at_end": "a stage ends with its last weights; choose with eval_rows how long it trains",
    "save_on_each_node": "all machines need one shared output_dir",
    "hub_token": "it would be written to settings.json: set HF_TOKEN, or log in with `hf auth login`",
    "push_to_hub": "push the finished stage with `python -m eval.report.push`",
    **dict.fromkeys(("packing", "padding_free"), "it is for text only: use packed_rows, which supports images"),
    **dict.fromkeys(
        ("completion_only_loss", "assistant_only_loss"), "drop it: answers and their end tokens are supervised"
    ),
}


def reject_ignored(given: Iterable[str]) -> None:
    """Refuse settings that would be ignored.

    Args:
        given: names of the settings in the YAML file and on the command line.

    Raises:
        UserError: one of them is in `REFUSED`.
    """
    for name in given:
        name = name if name in REFUSED else name.removeprefix("no_")
        if name in REFUSED:
            raise UserError(f"{name}: {REFUSED[name]}")
