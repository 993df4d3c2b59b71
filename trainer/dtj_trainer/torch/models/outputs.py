"""What a network of a user returns: logits alone, or with a loss of its own or other values beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def logits_and_loss(output: Any) -> tuple[Tensor, Tensor | None]:
    """Return the logits, and the network's own loss if it has one.

    Logits are a tensor, the first of a tuple or list, or `logits` of a mapping or of an object; the loss is `loss` of
    the mapping or object. Raises TypeError, which says so, for anything else.
    """
    if isinstance(output, Tensor):
        return output, None
    if isinstance(output, Mapping):
        logits, loss = output.get("logits"), output.get("loss")
    elif hasattr(output, "logits"):
        logits, loss = output.logits, getattr(output, "loss", None)
    else:
        logits, loss = output[0] if isinstance(output, tuple | list) and output else None, None
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the network returned {type(output).__name__}, and has to return logits (batch, classes): a tensor, the "
            "first of a tuple, or `logits` of a mapping or an object"
        )
    if loss is None:
        return logits, None
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise TypeError("the network's `loss` has to be a tensor of one number, or None")
    return logits, loss.reshape(())
