"""What a model does to its visual tokens: norms at the interface of vision and language (paper section 4)."""
