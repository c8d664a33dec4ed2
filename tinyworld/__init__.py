"""A small visual world whose right answers are known: scenes, language, backbones, conversations, benchmarks."""
