"""Reading checkpoints, tokenizers and images safely and strictly."""
