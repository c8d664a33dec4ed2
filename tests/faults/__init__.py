"""Kills, full disks, damaged files, trouble with the Hub: `python -m tests.faults --all` runs every campaign."""
