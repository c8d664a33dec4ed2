"""The paper's measurements on any vision-language model: `command_line.py` lists them, one module measures each."""
