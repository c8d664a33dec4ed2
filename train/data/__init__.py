"""From LLaVA's rows to batches: sources, checks, tokenization, images and collation."""
