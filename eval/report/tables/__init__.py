"""The comparison tables of a finished run."""
