"""The demo: up to three models answer about one picture, side by side, with what they look at and their norms."""
