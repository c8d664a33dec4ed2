"""The demo: up to three models answer about one image, side by side, with their attention and their norms."""
