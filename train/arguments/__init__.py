"""The settings of a stage, from one YAML file and the command line."""
