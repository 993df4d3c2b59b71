"""Invalid progress reports of a program. Each value is a kind that an operator once trusted."""

from __future__ import annotations

REPORTS: tuple[bytes, ...] = (
    b'{"progress": {"step": 1e400, "loss": -1e400, "examplesPerSecond": NaN}}',
    b'{"progress": {"step": %s, "totalSteps": -%s}}' % (b"9" * 400, b"9" * 400),
    b'{"progress": {"step": %s}}' % (b"9" * 5_000),
    b'{"progress": {"step": 7, "updatedTime": "0000-99-99 never"}, "artifacts": {"uri": 7}}',
    b'{"progress": {"step": 8, "bottleneck": {"kind": "Worker", "message": "\\u0000\\u001b[2J\\ud800\\u2028"}}}',
    b'{"progress": {"step": 9, "bottleneck": {"kind": "Worker", "message": "%s"}}}' % (b"x" * 50_000),
    b'{"progress": "%s"}' % (b"x" * 100_000),
    b'{"progress": %s%s}' % (b"[" * 30_000, b"]" * 30_000),
    b'{"progress": [], "artifacts": "none", "phases": 3}',
    b"\xff\xfe not JSON \x00",
)
"""Answers to a question for progress."""

_MESSAGES: tuple[str, ...] = (
    '{"class": "\\u0000\\u001b[2J", "message": "\\ud800\\u2028", "exitCode": 1e400, "index": -1}',
    '{"class": 7, "message": "%s", "lastLogLines": "none"}' % ("x" * 100_000),
    '{"lastLogLines": ["", "\\u0000", %s], "progress": {"step": 1e400}}' % ("9" * 400),
    '{"progress": {"updatedTime": "0000-99-99 never"}, "rank": %s}' % ("9" * 5_000),
)
MESSAGES = (*_MESSAGES, *(report.decode(errors="replace") for report in REPORTS))
"""Termination messages."""
