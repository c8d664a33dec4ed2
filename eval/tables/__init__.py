"""Step 4: the comparison tables of a finished run."""
