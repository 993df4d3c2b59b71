"""A network that a user's own function makes, given as `--model=package.module:factory`.

The factory is called with the keywords `channels`, of a picture, and `classes`. The folder in which the program
starts, and those of PYTHONPATH, are searched for the module.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def is_own(model: str) -> bool:
    """Return whether `model` is the path of a factory, not the name of a built-in network."""
    return ":" in model


def made_by(path: str, *, channels: int, classes: int) -> Any:
    """Import the factory at `path` and return what it makes.

    Raises ValueError if there is no such factory, or if it doesn't take `channels` and `classes`. What the module and
    the factory raise is passed on.
    """
    module_name, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ValueError(f"--model={path} has to be package.module:factory")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The user's own module imports a module that is missing.
        raise ValueError(
            f"--model={path}: there is no module {error.name}: put it into the image, and its folder into PYTHONPATH"
        ) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = ", ".join(sorted(each for each, _ in inspect.getmembers(module, inspect.isfunction)))
        raise ValueError(f"--model={path}: {module_name} has no function {name}, only: {functions or 'none'}")
    try:
        inspect.signature(factory).bind(channels=channels, classes=classes)
    except TypeError as error:
        raise ValueError(
            f"--model={path} has to take the keywords channels and classes, and no other without a default: {error}"
        ) from error
    return factory(channels=channels, classes=classes)
