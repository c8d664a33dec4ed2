"""Tables and figures of the diagnostics."""
