"""What a run shows and records: loss, gradients, norms by layer, and answers to held-out rows."""
