"""The price of pods, and the cost of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dtj.api.errors import Unusable
from dtj.api.horovod import LAUNCHER
from dtj.api.shown import enumerated
from dtj.api.spec import ROLES
from dtj.report.summary import Summary

_PRICE = re.compile(r"(?P<currency>[^\d\s.,=-]*)\s*(?P<amount>\d+(\.\d+)?)\s*(/\s*h)?")
# A launcher costs nothing by default: it requests a tenth of a processor, and shares a node with other pods.
_OF_NODES = [role for role in ROLES if role != LAUNCHER]
_FORMS = "give one price per hour for every pod, such as 0.90/h, or one for each role, such as worker=0.90,ps=0.023"


@dataclass(frozen=True)
class Price:
    """The price of a pod per hour, by role."""

    by_role: Mapping[str, float]
    currency: str = ""

    def __str__(self) -> str:
        """Return the prices for a note."""
        if {*self.by_role} == {*ROLES} and len({*map(self.by_role.get, _OF_NODES)}) == 1:
            return f"{self.currency}{self.by_role[_OF_NODES[0]]:g} for each pod but a launcher"
        return ", ".join(f"{role} {self.currency}{amount:g}" for role, amount in self.by_role.items())


def read_price(text: str) -> Price:
    """Return the price in `0.90`, `0.90/h` or `$0.90/h` for each pod but a launcher, or in `worker=0.90,ps=0.023`.

    Raises Unusable for any other text.
    """
    amounts: dict[str, float] = {}
    currencies: dict[str, None] = {}
    for part in text.split(","):
        role, equals, price = (word.strip() for word in part.rpartition("="))
        if not (match := _PRICE.fullmatch(price)):
            raise Unusable(f"{part.strip()!r} is not a price", _FORMS)
        if equals and role not in ROLES:
            raise Unusable(
                f"{part.strip()!r} does not name a role", f"the roles are {enumerated(ROLES, 'and')}"
            )
        if role in amounts:
            raise Unusable(f"{text!r} has two prices for {role or 'every pod'}", _FORMS)
        amounts[role] = float(match["amount"])
        if match["currency"]:
            currencies[match["currency"]] = None
    if "" in amounts and len(amounts) > 1:
        raise Unusable(f"{text!r} has a price for every pod and a price for a role", _FORMS)
    if len(currencies) > 1:
        raise Unusable(f"{text!r} has the currencies {enumerated(currencies, 'and')}", "give one currency")
    if "" in amounts:
        amounts = {LAUNCHER: 0.0, **dict.fromkeys(_OF_NODES, amounts[""])}
    return Price(amounts, "".join(currencies))


def cost(run: Summary, price: Price) -> float | None:
    """Return time × pods × price over all roles.

    The cost is None if the run has not ended, if its pods are unknown, or if a role that has pods has no price.
    """
    if run.seconds is None or run.pods is None or _unpriced(run, price):
        return None
    return run.seconds / 3600 * sum(pods.number * price.by_role[role] for role, pods in run.pods.items())


def cost_notes(runs: Sequence[Summary], price: Price) -> Iterator[str]:
    """Yield how the cost is computed, why costs are unknown, and which roles have pods of several kinds."""
    yield (
        f"Cost: time × pods × price per hour, over all roles: {price}. The time is the total time, or the training "
        "time where the total time is unknown."
    )
    ended = [run for run in runs if run.seconds is not None]
    if unknown := [run.name for run in ended if run.pods is None]:
        yield (
            f"The cost of {', '.join(unknown)} is unknown: neither job.yaml nor a recorded status shows the pods."
        )
    for role in {role: None for run in ended for role in run.pods or {}}:
        if names := [run.name for run in ended if role in _unpriced(run, price)]:
            yield (
                f"The cost of {', '.join(names)} is unknown: {role} has pods and no price. Add {role}=PRICE, or "
                f"{role}=0 if these pods need no node of their own."
            )
        gpus = sorted({run.pods[role].gpus for run in ended if run.pods and role in run.pods})
        if len(gpus) > 1 and price.by_role.get(role):
            yield (
                f"The pods of {role} have {enumerated(map(str, gpus), 'or')} GPUs, depending on the run, and one "
                "price: make a report for each number of GPUs, with its price."
            )


def _unpriced(run: Summary, price: Price) -> list[str]:
    return [role for role in run.pods or {} if role not in price.by_role]
