"""`--models NAME=PATH ...`: names and paths of a command's models."""

import re

from modeling_aligned_llava.errors import UserError


def named_models(arguments: list[str]) -> dict[str, str]:
    """NAME -> PATH, in the order given.

    Raises:
        UserError: an argument is not NAME=PATH, or a name is given twice.
    """
    models: dict[str, str] = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not re.fullmatch(r"[\w.+-]+", name) or not path:
            raise UserError(f"--models {argument}: expected NAME=PATH, the name of letters, digits and . + - _")
        if name in models:
            raise UserError(f"--models: {name} is given twice")
        models[name] = path
    return models
