"""A small visual world with known answers: scenes, language, backbones, conversations, benchmarks."""

from early_signals import end_on_early_signals


end_on_early_signals()
