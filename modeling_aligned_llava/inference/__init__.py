"""Greedy answers in batches that compute shared prefixes once."""
