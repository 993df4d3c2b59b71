"""Shortens the log of TensorFlow's Python side."""

from __future__ import annotations

import logging

_LENGTH = 300
_GOOD_NEWS = "has been recovered"


def quieten_tensorflow() -> None:
    """Make TensorFlow log only errors and the recovery of workers, with one line each.

    The coordinator reports a lost worker by pages of nested messages.
    """
    logging.getLogger("absl").setLevel(logging.WARNING)
    logger = logging.getLogger("tensorflow")
    logger.handlers.clear()  # The root logger has a handler.
    logger.setLevel(logging.INFO)
    logger.addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if record.levelno < logging.ERROR and _GOOD_NEWS not in text:
        return False
    record.msg, record.args = text.strip().partition("\n")[0][:_LENGTH], ()
    return True
