"""The commands of `python -m eval.diagnostics`: each parses, calls, shows and writes."""
