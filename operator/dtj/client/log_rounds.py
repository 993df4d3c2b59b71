"""The rounds in the output of a job: at which start of its ranks each line was printed. Pure.

The ranks of a job that restarts in place start several times in the same pods. Each start is a round, and 0 is the
first. The logs go on in a round, after a line of dtj-launch that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dtj.api.errors import NotFound
from dtj.client.objects import LogLine, LogQuery

_BEGINS = re.compile(r"dtj: (?:INFO: )?round (\d{1,9}) begins\b")
"""Matches the line that dtj-launch prints before the output of a round. The agent of TorchDistributed ranks adds
`INFO` in its own output. The agent and Horovod's launcher add the cause of the round after `begins`."""


class RoundChoice:
    """The lines that a query selects by their round, and the rounds that the logs of a job have."""

    def __init__(self, job: str, query: LogQuery) -> None:
        """job: the name of the job."""
        self._job, self._query = job, query
        self.seen: set[int] = set()

    def log(self, source: str, known: Iterable[LogLine] = ()) -> LogRounds:
        """Return the selection for one log. source: of lines that begin with no `[rank N]`. known: see LogRounds."""
        return LogRounds(self, self._query.round, source, known)

    def check(self) -> None:
        """Raise NotFound if no line belongs to the query's round. Call this method after all lines were read."""
        number, attempt = self._query.round, self._query.attempt
        seen = sorted(self.seen or {0})
        if number is None or number in seen:
            return
        whose = f"attempt {attempt}" if attempt else "the newest attempt"
        rounds = f"round{'s' if len(seen) > 1 else ''} {', '.join(map(str, seen))}"
        raise NotFound(
            f"the logs of {whose} of {self._job} have no round {number}: they have {rounds}",
            "round 0 is the first start of the ranks in the pods of an attempt, round 1 the first restart in place",
        )


class LogRounds:
    """Selects the lines of one log by their round.

    A line belongs to the newest round that dtj-launch has begun before it: in the output of the same rank, or of the
    log's own source, which no rank can print where ranks share the log. The number only rises: a program that prints
    the log of an earlier round changes nothing, and one that prints a higher number spoils the view of its own lines.
    """

    def __init__(
        self, choice: RoundChoice, wanted: int | None, source: str, known: Iterable[LogLine]
    ) -> None:
        """known: the present lines, if the beginning of the log may be lost. A source's lines before its first line
        `round N begins` then belong to round N - 1.
        """
        self._choice = choice
        self._wanted = wanted
        self._source = source
        self._now: dict[str, int] = {}
        for line in known if wanted is not None else ():
            if (number := _begun(line)) is not None:
                self._now.setdefault(line.source, max(0, number - 1))

    def has(self, line: LogLine) -> bool:
        """Read the next line. Return whether the line belongs to the wanted round, or no round is wanted."""
        if self._wanted is None:
            return True
        begun = _begun(line) or 0
        own = self._now[line.source] = max(self._now.get(line.source, 0), begun)
        number = max(own, self._now.get(self._source, 0))
        # The round before `begun` exists, too, although its ranks may have printed nothing.
        self._choice.seen |= {number, begun - 1} if begun else {number}
        return number == self._wanted

    def is_over(self) -> bool:
        """Return whether no later line can be of the wanted round."""
        return self._wanted is not None and self._now.get(self._source, 0) > self._wanted


def _begun(line: LogLine) -> int | None:
    """Return the number of the round that begins with a line."""
    found = _BEGINS.match(line.text)
    return int(found[1]) if found else None
