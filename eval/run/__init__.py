"""What the programs of `eval` share: files, records, devices, names of models."""
