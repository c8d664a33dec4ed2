"""Measures how a model treats its visual tokens: norms and rotations from encoder to last layer (paper section 4)."""
