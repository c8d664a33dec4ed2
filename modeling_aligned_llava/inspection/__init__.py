"""What a model is made of, and what its layers do."""
