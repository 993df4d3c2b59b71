"""Options of commands that the program of the trainer has, too: one table for both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from dtj_trainer.contract.program_options import Option


def with_options(options: Sequence[Option]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of the program in place of its `**given`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True)
        *named, _ = own.parameters.values()
        added = [
            inspect.Parameter(
                option.key,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(option),
                annotation=_annotation(option),
            )
            for option in options
        ]
        function.__signature__ = own.replace(parameters=[*named, *added])  # type: ignore[attr-defined]
        return function

    return decorate


def split(options: Sequence[Option], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options with a value, and the flags that are on."""
    values = {option.name: given[option.key] for option in options if option.kind is not bool}
    return values, [f"--{option.name}" for option in options if option.kind is bool and given[option.key]]


def _default(option: Option) -> object:
    return False if option.kind is bool else option.default


def _annotation(option: Option) -> object:
    kind: Any = Literal[option.choices] if option.choices else option.kind
    limits: dict[str, Any] = {} if option.least is None else {"min": option.kind(option.least)}
    return Annotated[
        kind if _default(option) is not None else kind | None,
        typer.Option(f"--{option.name}", metavar=option.metavar or None, help=option.about, **limits),
    ]
