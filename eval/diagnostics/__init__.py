"""The diagnostics on the models of a run."""
