"""What a job leaves in the bucket of its course: `run.json`, `end.json`, and its entry in the index. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

RUN_FILE = "run.json"
"""What the job is: the digest of its spec, its world, its attempts."""
END_FILE = "end.json"
"""How the job ended: the status that its object had. A later record of the same job replaces it."""
INDEX = "_index"
"""The folder of the index, below the job's `artifacts.uri`."""

_LATEST = 9_999_999_999
# No Kubernetes name contains an underscore.
_KEY = re.compile(rf"{INDEX}/([0-9]{{10}})_([^_/]+)_([^_/]+)_([^_/]+)")


class IndexEntry(NamedTuple):
    """A job in the index."""

    created: datetime
    namespace: str
    name: str
    uid: str

    @property
    def prefix(self) -> str:
        """The job's own prefix below `artifacts.uri`."""
        return f"{self.namespace}/{self.name}-{self.uid.split('-', 1)[0]}"


def index_key(created: datetime, namespace: str, name: str, uid: str) -> str:
    """Return the key of a job in the index, below `artifacts.uri`. A listing begins with the newest job.

    created: when the job was created, with a time zone.
    """
    inverted = min(max(_LATEST - int(created.timestamp()), 0), _LATEST)
    return f"{INDEX}/{inverted:010d}_{namespace}_{name}_{uid}"


def parsed_index_key(key: str) -> IndexEntry | None:
    """Return the job of a key of the index, or None for another key. `key` begins with INDEX."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    inverted, namespace, name, uid = found.groups()
    return IndexEntry(datetime.fromtimestamp(_LATEST - int(inverted), UTC), namespace, name, uid)
