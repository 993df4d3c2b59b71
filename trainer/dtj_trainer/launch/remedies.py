"""What to do about errors of programs whose own words don't say it."""

from __future__ import annotations

from collections.abc import Sequence

_REMEDIES = {
    "'Variable' object has no attribute 'ref'": (
        "the script is one for Keras 2: set TF_USE_LEGACY_KERAS=1 in spec.env, with tf_keras in the image"
        " (docs/own-script.md)"
    ),
}
"""By what a program's last lines have in them."""
_LINES = 5
"""Libraries may have their say after the error."""


def remedy(last_lines: Sequence[str]) -> str | None:
    """What to do about the error in a program's last lines; None when nothing is known of it."""
    text = "\n".join(last_lines[-_LINES:])
    return next((what for error, what in _REMEDIES.items() if error in text), None)
