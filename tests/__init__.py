"""Tests mirror the folders of the code."""

from pathlib import Path


REPOSITORY = Path(__file__).resolve().parents[1]
