"""Tables and figures of the diagnostics, with the paper's values."""
