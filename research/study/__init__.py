"""The controlled study: grids of method, seed and settings, run, recorded and analysed (docs/contributing.md)."""
