"""What TensorFlow's Python side writes into the log, as short as it can be."""

from __future__ import annotations

import logging

_LENGTH = 300
_GOOD_NEWS = "has been recovered"


def quieten_tensorflow() -> None:
    """Have TensorFlow log only errors and workers that are back, once, and a line each.

    The coordinator tells of a lost worker by pages of nested messages.
    """
    logging.getLogger("absl").setLevel(logging.WARNING)
    logger = logging.getLogger("tensorflow")
    logger.handlers.clear()  # the root logger has one
    logger.setLevel(logging.INFO)
    logger.addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if record.levelno < logging.ERROR and _GOOD_NEWS not in text:
        return False
    record.msg, record.args = text.strip().partition("\n")[0][:_LENGTH], ()
    return True
