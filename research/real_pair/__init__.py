"""Pretrained parts that come from PyPI where the Hub cannot be reached: decoders and a vision tower."""
