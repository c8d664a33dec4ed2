"""The norm profile of a model: measured by hooks, summarised in a file, judged."""
