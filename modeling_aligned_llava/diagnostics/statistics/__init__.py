"""Sums over tokens and intervals over images."""
