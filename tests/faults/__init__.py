"""Kills, full disks, damaged files, trouble with the Hub: one fault a file."""
