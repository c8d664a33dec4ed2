"""Training rooms: data -> collator -> trainer -> callbacks, entry point `train.sft`."""
