"""A small visual world with known answers: scenes, language, backbones, conversations, benchmarks."""
