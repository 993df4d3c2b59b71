"""A bucket that takes 100 MB/s of a fake clock's time, and keeps only the sizes of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.multipart import Uploaded
from dtj_trainer.artifacts.store import ABSENT, Store, StoredObject

BYTES_PER_SECOND = 100e6
_SMALL = "attempt"


class Clock:
    """Seconds since the begin, and since 1970."""

    def __init__(self) -> None:
        self.now = 0.0

    def reach(self, second: float) -> None:
        """Go on to that second, unless an upload has taken longer."""
        self.now = max(self.now, second)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self.now

    def time(self) -> float:
        """Seconds since 1970."""
        return 1_800_000_000 + self.now


class Sink(Store):
    """With conditional writes. Claims are kept, of everything else the size."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(s3.S3Location("sink", "job"))
        self._clock = clock
        self._claims: dict[str, bytes] = {}
        self._etags: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.bytes = self.puts = 0

    @property
    def kept(self) -> int:
        """Bytes of all objects."""
        return sum(self.sizes.values())

    def put_bytes(self, key: str, content: bytes, *, replaces: str | None = None) -> str:
        """Take the time that it takes. Raises FileChanged."""
        if replaces is not None and self._etags.get(key, ABSENT) != replaces:
            raise s3.Changed(f"{key} is another one")
        self.puts += 1
        self._etags[key] = etag = str(self.puts)
        if key.startswith(_SMALL):
            self._claims[key] = content
            return etag
        self._clock.now += len(content) / BYTES_PER_SECOND
        self.bytes += len(content)
        self.sizes[key] = len(content)
        return etag

    def put_whole(
        self,
        key: str,
        path: Path,
        on_bytes: Callable[[int], None] | None = None,
        *,
        replaces: str | None = None,
    ) -> Uploaded:
        """As `put_bytes`, without a SHA-256."""
        del on_bytes
        return Uploaded(self.put_bytes(key, path.read_bytes(), replaces=replaces), "")

    def etag(self, key: str) -> str:
        """Raises NoSuchKey."""
        if key not in self._etags:
            raise s3.NoSuchKey(key)
        return self._etags[key]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """Of a claim. Raises NoSuchKey."""
        etag = self.etag(key)
        return self._claims[key], etag

    def named(self, start: str) -> Iterator[StoredObject]:
        """Those whose keys begin so."""
        for key, size in sorted(self.sizes.items()):
            if key.startswith(start):
                yield StoredObject(key, size, self._etags[key])
