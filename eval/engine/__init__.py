"""Runs a graph of resumable steps on Ray: this machine, or a cluster with a shared folder."""
