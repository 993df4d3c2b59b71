"""The messages by which the agents of a job agree on a round: their content, and their form on the wire.

A *round* is one start of all ranks in living pods. One agent is the *coordinator*. The others keep a connection each
to its start barrier. A message is a line: a JSON object of at most LINE_BYTES with the line feed. Any client that
reaches the port can write messages. So a message has only numbers, a hash, and texts that are only shown: no message
can make a pod run another command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from dtj_trainer import contract
from dtj_trainer.launch.pod_connections import LINE_BYTES
from dtj_trainer.launch.termination import RankExit, encode, fitted_to

PROTOCOL = 1
"""The version of the messages, in `join`. Ranks are restarted in place only if all agents have the same version."""
REPORT_BYTES = 3500
LONGEST_TEXT = 500
"""Characters of a text that is only shown."""
_MOST_ROUNDS, _MOST_PODS, _MOST_NUMBER = 10**6, 10**6, 2**62
_FIRST_PORT, _LAST_PORT = 1024, 65535
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CLASS = re.compile(r"[A-Za-z]{1,64}")


class InvalidMessage(ValueError):
    """A line is no valid message. The message of the exception says why."""


class Snapshot(NamedTuple):
    """A snapshot of the checkpoints folder."""

    claim: int
    number: int
    sha256: str
    """The hash of its manifest, in hex digits."""

    @property
    def order(self) -> tuple[int, int]:
        """A later snapshot has a greater order."""
        return self.claim, self.number


# --- messages of an agent to the coordinator ------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """The agent takes part in rounds. `round`: the last one that it started; None: it has started no program yet."""

    round: int | None = 0
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Failed:
    """A program of the pod failed, and was not asked to stop."""

    round: int
    report: RankExit


@dataclass(frozen=True)
class Done:
    """All programs of the pod succeeded. The pod uploads the rest and ends: the end of its connection is no loss."""

    round: int


@dataclass(frozen=True)
class Ready:
    """All programs of the pod have ended after `stop`."""

    round: int


@dataclass(frozen=True)
class Found:
    """The answer to `seek`. `snapshot`: the newest one; None: there is none. `why`: why none can be had, or empty."""

    round: int
    snapshot: Snapshot | None = None
    why: str = ""


@dataclass(frozen=True)
class Leave:
    """The pod takes no part in a later round: it was told to end, or can't end a process."""

    why: str


AgentMessage = Join | Failed | Done | Ready | Found | Leave


# --- messages of the coordinator to the agents ----------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """All pods have joined: from now on, a failure may be followed by a round, and a lost connection ends it."""


@dataclass(frozen=True)
class Stop:
    """End all programs of this round, then send `ready`."""

    round: int


@dataclass(frozen=True)
class Seek:
    """Find the newest snapshot. Only the pod of rank 0 gets this message, after all pods have sent `ready`."""

    round: int


@dataclass(frozen=True)
class Go:
    """Start the ranks of this round.

    `port`: the MASTER_PORT. `snapshot`: what the checkpoints folder of each pod must have; None: nothing. `failure`:
    the cause of the restart, for logs and reports.
    """

    round: int
    port: int
    snapshot: Snapshot | None = None
    failure: RankExit | None = None


@dataclass(frozen=True)
class End:
    """No round follows: each container ends with its own failure. Programs that run go on as without rounds."""

    why: str


@dataclass(frozen=True)
class Wait:
    """The coordinator still works. `why`: what it waits for."""

    why: str


CoordinatorMessage = Joined | Stop | Seek | Go | End | Wait


def restarts_of(count: int, failure: RankExit | None) -> contract.RoundRestarts:
    """Return what a pod reports after `count` restarts in place. `failure`: the cause of the last one, if known."""
    return {"count": count, "failure": failure} if failure else {"count": count}


def line_of(message: AgentMessage | CoordinatorMessage) -> bytes:
    """Return a message as a line, with the line feed."""
    content: dict[str, Any] = {"say": type(message).__name__.lower()}
    for name, value in vars(message).items():
        if isinstance(value, Snapshot):
            content[name] = value._asdict()
        elif isinstance(value, dict):
            content[name] = fitted_to(_shown_report(cast(RankExit, value)), REPORT_BYTES)
        elif name == "why":
            content[name] = shown(value)
        elif value is not None:
            content[name] = value
    return encode(cast(contract.Termination, content)) + b"\n"


def agent_message(line: bytes) -> AgentMessage:
    """Read a line of an agent. Raises InvalidMessage."""
    return cast(AgentMessage, _read(line, _OF_AGENTS))


def coordinator_message(line: bytes) -> CoordinatorMessage:
    """Read a line of the coordinator. Raises InvalidMessage."""
    return cast(CoordinatorMessage, _read(line, _OF_COORDINATOR))


def shown(text: str) -> str:
    """Return a text in one line that is safe to show, cut to LONGEST_TEXT."""
    return _printable(text[:LONGEST_TEXT])


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)


_Content = Mapping[str, Any]


def _read(line: bytes, known: Mapping[str, Callable[[_Content], object]]) -> object:
    if len(line) > LINE_BYTES:
        raise InvalidMessage(f"a message must have at most {LINE_BYTES} bytes, not {len(line)}")
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidMessage("a message must be a JSON object") from None
    if not isinstance(content, dict):
        raise InvalidMessage("a message must be a JSON object")
    word = content.get("say")
    read = known.get(word) if isinstance(word, str) else None
    if read is None:
        raise InvalidMessage(f"`say` must be one of {', '.join(known)}")
    return read(content)


def _number(content: _Content, name: str, least: int, most: int) -> int:
    value = content.get(name)
    # Compare types, because isinstance(True, int) is true.
    if type(value) is not int or not least <= value <= most:
        raise InvalidMessage(f"`{name}` must be a whole number from {least} to {most}")
    return value


def _text(content: _Content, name: str, most: int) -> str:
    value = content.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise InvalidMessage(f"`{name}` must be a string of at most {most} characters")
    return _printable(value)


def _round(content: _Content, least: int = 0) -> int:
    return _number(content, "round", least, _MOST_ROUNDS)


def _join(content: _Content) -> Join:
    joined = None if content.get("round") is None else _round(content)
    return Join(joined, _number(content, "protocol", 1, _MOST_NUMBER))


def _failed(content: _Content) -> Failed:
    return Failed(_round(content), _report(content, "report"))


def _report(message: _Content, name: str) -> RankExit:
    """Return the known fields of a report. Other pods do not use the other fields."""
    content = message.get(name)
    if not isinstance(content, dict):
        raise InvalidMessage(f"`{name}` must be an object")
    report: RankExit = {
        "class": _text(content, "class", 64),
        "message": _text(content, "message", REPORT_BYTES),
        "exitCode": _number(content, "exitCode", 0, 255),
        "index": _number(content, "index", 0, _MOST_PODS),
    }
    if not _CLASS.fullmatch(report["class"]):
        raise InvalidMessage("`class` must be a failure class: 1 to 64 letters")
    if "role" in content:
        report["role"] = _text(content, "role", 63)
    if "host" in content:
        report["host"] = _text(content, "host", 253)
    if "rank" in content:
        report["rank"] = _number(content, "rank", 0, _MOST_PODS)
    if "signal" in content:
        report["signal"] = _number(content, "signal", 1, 64)
    lines = content.get("lastLogLines", [])
    if not isinstance(lines, list) or not all(isinstance(each, str) for each in lines):
        raise InvalidMessage("`lastLogLines` must be a list of strings")
    if lines:
        report["lastLogLines"] = [_printable(each) for each in lines]
    return report


def _shown_report(report: RankExit) -> contract.Termination:
    """Return the part of a report that other pods need."""
    kept = {name: value for name, value in report.items() if name in _REPORTED}
    return cast(contract.Termination, kept)


_REPORTED = frozenset(
    {"class", "message", "role", "index", "rank", "host", "exitCode", "signal", "lastLogLines"}
)


def _go(content: _Content) -> Go:
    port = _number(content, "port", _FIRST_PORT, _LAST_PORT)
    failure = None if content.get("failure") is None else _report(content, "failure")
    return Go(_round(content, 1), port, _snapshot(content), failure)


def _snapshot(message: _Content) -> Snapshot | None:
    content = message.get("snapshot")
    if content is None:
        return None
    if not isinstance(content, dict):
        raise InvalidMessage("`snapshot` must be an object")
    sha256 = content.get("sha256")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise InvalidMessage("`snapshot.sha256` must have 64 hex digits")
    return Snapshot(
        _number(content, "claim", 0, _MOST_NUMBER), _number(content, "number", 0, _MOST_NUMBER), sha256
    )


_OF_AGENTS: Mapping[str, Callable[[_Content], object]] = {
    "join": _join,
    "failed": _failed,
    "done": lambda content: Done(_round(content)),
    "ready": lambda content: Ready(_round(content)),
    "found": lambda content: Found(_round(content), _snapshot(content), _text(content, "why", LONGEST_TEXT)),
    "leave": lambda content: Leave(_text(content, "why", LONGEST_TEXT)),
}
_OF_COORDINATOR: Mapping[str, Callable[[_Content], object]] = {
    "joined": lambda _: Joined(),
    "stop": lambda content: Stop(_round(content)),
    "seek": lambda content: Seek(_round(content)),
    "go": _go,
    "end": lambda content: End(_text(content, "why", LONGEST_TEXT)),
    "wait": lambda content: Wait(_text(content, "why", LONGEST_TEXT)),
}
