"""What a run shows and records: loss, gradients and norms by layer."""
