"""The harness calls, scores and statistics behind the comparison table."""
