"""Walks over state dicts, which are dicts and lists of tensors and plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Empty(NamedTuple):
    """A placeholder with the properties needed to make a tensor like the original."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def without_values(state: Any) -> Any:
    """Return a state dict of dicts and lists with an Empty in place of each tensor."""
    if isinstance(state, torch.Tensor):
        return Empty(tuple(state.shape), state.dtype, state.device.type)
    if isinstance(state, dict):
        return {key: without_values(value) for key, value in state.items()}
    return [without_values(value) for value in state] if isinstance(state, list) else state


def with_values(state: Any) -> Any:
    """Replace each Empty by a tensor with arbitrary values, the opposite of `without_values`."""
    if isinstance(state, Empty):
        return torch.empty(state.shape, dtype=state.dtype, device=state.device)
    if isinstance(state, dict):
        return {key: with_values(value) for key, value in state.items()}
    return [with_values(value) for value in state] if isinstance(state, list) else state


def tensors_in(state: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a state dict with names, in the same order on all ranks."""
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, dict):
            yield from tensors_in(value, f"{prefix}{key}.")
