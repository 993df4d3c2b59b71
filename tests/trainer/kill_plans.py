"""Draws chains of attempts: in which way a program saves, and at which moment each attempt is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, get_args

from tests.trainer.killing_proxy import AtRequest, What, When
from tests.trainer.saving_program import WAYS, in_place_again

Killed = Literal["agent", "program", "both", "term"]
KINDS: tuple[Killed, ...] = get_args(Killed)
KILLS_OF_A_CHAIN = (2, 2, 2, 1, 3, 1, 3)
SHOWN_WHOLE = {"rename", "renamed folder", "one name"}
"""Ways that show dtj when a checkpoint is whole. A link counts as a file written in place does: docs/contract.md."""
SETTLE = 0.5
"""DTJ_CHECKPOINT_SETTLE_SECONDS of the attempts."""
SALT = "106/"
"""With the seed of `make test`, its few kills come at moments of all families: of a save, an upload, a restore."""
SELDOM = 16.0
"""Seconds between saves to one file in place. A file that changes more often counts as a log: docs/checkpoints.md."""
SMALL, MEDIUM, LARGE = 20_000, 1_500_000, 17_000_000
"""Sizes of a file. A large one is sent in parts."""


@dataclass(frozen=True)
class AtSave:
    """A moment of the program's own: of which save, where in it, and how long the program stands there before."""

    save: int
    moment: str
    after: float


@dataclass(frozen=True)
class Kill:
    """What is killed, and when. otherwise: the moment of an attempt that has nothing to restore."""

    killed: Killed
    at: AtSave | AtRequest
    otherwise: AtRequest

    @property
    def moment(self) -> str:
        """The kind of the moment, for the summary."""
        if isinstance(self.at, AtSave):
            return f"{self.at.moment} +{self.at.after:.1f} s" if self.at.after else self.at.moment
        return f"{self.at.when} {self.at.what} request"


@dataclass(frozen=True)
class Attempt:
    """What one attempt does. kill: None for the last one, which trains to its end."""

    kill: Kill | None
    seed: int
    size: int
    pause: float
    megabytes_per_second: float
    on_term: str


@dataclass(frozen=True)
class Plan:
    """A chain of attempts of one job."""

    number: int
    way: str
    form: int
    attempts: tuple[Attempt, ...]

    @property
    def kills(self) -> list[Kill]:
        return [attempt.kill for attempt in self.attempts if attempt.kill]


def _kill(chance: random.Random, killed: Killed, way: str, number: int) -> Kill:
    otherwise = AtRequest("file", 1, "before")
    families = ["save", "save", "write", "write"]
    if number > 1 and killed != "program":  # During a restore, there is no program.
        families.append("restore")
    family = chance.choice(families)
    if family == "save":
        after = chance.choice([0.0, 0.0, 0.0, 0.3, 0.8, 1.8])
        return Kill(killed, AtSave(chance.randint(1, 4), chance.choice(WAYS[way].moments), after), otherwise)
    when: When = chance.choice(["before", "half", "after"])
    what: What = "read" if family == "restore" else chance.choice(["file", "manifest"])
    most = 3 if what == "file" else 2
    return Kill(killed, AtRequest(what, chance.randint(1, most), when), otherwise)


def _seldom(attempt: Attempt) -> Attempt:
    """The attempt with few saves: of one file that is written in place again and again."""
    kill = attempt.kill
    if kill is None:
        return attempt
    at = (
        replace(kill.at, save=1 + kill.at.save % 2)
        if isinstance(kill.at, AtSave)
        else replace(kill.at, number=1)
    )
    return replace(attempt, pause=SELDOM, kill=replace(kill, at=at))


def _attempt(chance: random.Random, kill: Kill | None) -> Attempt:
    size = chance.choices([SMALL, MEDIUM, LARGE], [5, 4, 1])[0]
    return Attempt(
        kill,
        chance.getrandbits(32),
        size,
        pause=chance.choice([0.1, 0.4, 0.8, 1.2]) if kill else 0.05,
        megabytes_per_second=0.0 if size == LARGE else chance.choice([0.0, 1.0]),
        on_term=chance.choice(["dies", "dies", "ends with 0", "ends with 143"]),
    )


def chains(seed: str, kills: int) -> Iterator[Plan]:
    """Draw chains with so many kills in all: each way meets the kinds in turn."""
    turns = dict.fromkeys(WAYS, 0)
    for number in count():
        way = list(WAYS)[number % len(WAYS)]
        chance = random.Random(f"{SALT}{seed}-{number}")
        first = number % len(WAYS) + turns[way]
        many = min(KILLS_OF_A_CHAIN[number % len(KILLS_OF_A_CHAIN)], kills)
        kinds = [KINDS[(first + place) % len(KINDS)] for place in range(many)]
        turns[way] += many
        kills -= many
        attempts = [
            *(_attempt(chance, _kill(chance, killed, way, place)) for place, killed in enumerate(kinds, 1)),
            _attempt(chance, None),
        ]
        form = chance.randrange(len(WAYS[way].forms))
        if WAYS[way].forms[form] is in_place_again:
            attempts = [_seldom(attempt) for attempt in attempts]
        yield Plan(number, way, form, tuple(attempts))
        if not kills:
            return


def with_something_to_restore(attempt: Attempt, *, exists: bool) -> Attempt:
    """The attempt with a moment that comes: without a snapshot in the bucket, nothing is restored."""
    kill = attempt.kill
    if kill is None or exists or not isinstance(kill.at, AtRequest) or kill.at.what != "read":
        return attempt
    return replace(attempt, kill=replace(kill, at=kill.otherwise))
