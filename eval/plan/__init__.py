"""Step 1: which models a run has, how they are trained, and how each is evaluated."""
