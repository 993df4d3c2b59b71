"""The targets of figures, and the verdict on each target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tests.bench.figures import shown


@dataclass(frozen=True)
class Target:
    """A bound of one figure. A line of the verdict gives the figure's ratio to it."""

    name: str
    figure: str
    bound: float | Callable[[Mapping[str, float]], float]
    """Or what it is, from the run's other figures."""
    at_least: bool = False
    of_a_ratio: bool = False
    """Whether the figure is a ratio itself: it is told as it is."""

    def verdict(self, figures: Mapping[str, float]) -> str | None:
        """`name ratio target met|missed`; None where the run did not measure the figure."""
        if self.figure not in figures:
            return None
        bound = self.bound(figures) if callable(self.bound) else self.bound
        scale = 1.0 if self.of_a_ratio else bound
        ratio, limit = figures[self.figure] / scale, bound / scale
        met = ratio >= limit if self.at_least else ratio <= limit
        sign = "≥" if self.at_least else "≤"
        return f"{self.name} {shown(ratio)} {sign}{limit:g} {'met' if met else 'missed'}"


def verdicts(targets: Iterable[Target], figures: Mapping[str, float]) -> list[str]:
    """The lines of those targets whose figures were measured."""
    return [line for target in targets if (line := target.verdict(figures)) is not None]
