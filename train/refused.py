"""Settings of TRL's `SFTConfig` that would be ignored are refused with what to use instead; all others act."""

# Settings that would change nothing, or break what a stage promises -> what to use.
REFUSED = {
    # what follows from our own settings
    "learning_rate": "use learning_rates, a rate for each group of parameters",
    "gradient_accumulation_steps": "use global_batch_size, from which it follows",
    "auto_find_batch_size": "give per_device_train_batch_size; the global batch stays the same",
    "optim_target_modules": "use learning_rates and frozen to choose parameters",
    "remove_unused_columns": "the columns that training needs are known",
    "disable_tqdm": "training shows a progress bar of its own",
    "resume_from_checkpoint": "the same command continues from the last checkpoint in output_dir",
    # data
    "data_seed": "use seed, which sets the order of the rows too",
    "shuffle_dataset": "use train_sampling_strategy",
    "length_column_name": "lengths are measured by train_sampling_strategy: group_by_length itself",
    "dataset_text_field": "rows are LLaVA's conversations (docs/train.md)",
    "dataset_kwargs": "rows are LLaVA's conversations (docs/train.md)",
    "dataset_num_proc": "all cores that the process may use prepare the rows",
    **dict.fromkeys(
        ("packing", "packing_strategy", "padding_free", "eval_packing"),
        "TRL packs text only: micro_batch_tokens leaves little padding",
    ),
    "pad_to_multiple_of": "drop it: steps are padded to their longest row",
    "truncation_mode": "rows longer than max_length are left out and listed, never cut",
    "ignore_data_skip": "a resumed run reads the rows that are left",
    # template and loss
    "chat_template_path": "use chat_template in stage 1, so that training and the saved processor have one template",
    "eos_token": "the template ends an answer with the tokenizer's own",
    "pad_token": "the tokenizer's own is used",
    "completion_only_loss": "drop it: answers and their end tokens are supervised",
    "assistant_only_loss": "drop it: answers and their end tokens are supervised",
    "label_smoothing_factor": "TRL's fused loss does not support it",
    "router_aux_loss_coef": "no mixture of experts has been trained here",
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), "use use_kernels, as TRL advises; its loss is fused"),
    "label_names": "drop it: the labels are known",
    "include_num_input_tokens_seen": "drop it, num_tokens in log.jsonl already counts them",
    # the model
    "model_init_kwargs": "use attn_implementation; weights are read in float32",
    "trust_remote_code": "the model's own code is this package",
    "use_cache": "training needs none",
    "bf16_full_eval": "evaluation has the precision of training: bf16",
    **dict.fromkeys(
        ("fp16", "fp16_full_eval"), "use bf16: gradients are measured and clipped as they are, not scaled"
    ),
    "parallelism_config": "use DDP, FSDP2 or ZeRO (docs/train.md)",
    **dict.fromkeys(("activation_checkpointing", "activation_checkpointing_kwargs"), "use gradient_checkpointing"),
    # checkpoints
    "save_only_model": "without the optimizer's state a stopped run could not continue",
    "load_best_model_at_end": "a stage ends with its last weights; choose with eval_rows how long it trains",
    "metric_for_best_model": "a stage ends with its last weights",
    "greater_is_better": "a stage ends with its last weights",
    "save_on_each_node": "all machines need one shared output_dir",
    "enable_jit_checkpoint": "SIGTERM saves a checkpoint already",
    "restore_callback_states_from_checkpoint": "a resumed run restores them by itself",
    # evaluation
    **dict.fromkeys(
        (
            *("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
            *("include_for_metrics", "batch_eval_metrics", "do_train", "do_eval", "do_predict"),
        ),
        "drop it: evaluation in training measures the loss alone; scores come from eval.suite",
    ),
    # the Hub
    "hub_token": "it would be written to settings.json: set HF_TOKEN, or log in with `hf auth login`",
    **dict.fromkeys(
        (*("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"),),
        "push the finished stage with `python -m eval.report.push`",
    ),
}
