"""Collects the errors of a pass, so that a key that the store refuses does not prevent the upload of other keys."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.s3 import RefusedKey, S3Error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.refused_files import RefusedFiles
    from dtj_trainer.artifacts.upload_rules import Source

log = logging.getLogger(__name__)


class PassErrors:
    """The errors of one pass."""

    def __init__(self, refused: RefusedFiles, *, last: bool) -> None:
        """`last`: the program has ended, so that refused files are tried once more."""
        self._refused = refused
        self._last = last
        self._errors: list[S3Error] = []
        self._over: set[Source] = set()
        self._refused_now: set[Path] = set()

    @contextmanager
    def of(self, source: Source, path: Path | None = None) -> Iterator[None]:
        """Record an S3Error of this block, or that a file can't be read.

        path: the file; by default that of the source. A file that was removed is not an error.
        """
        path = path or source.path
        try:
            yield
        except Superseded:  # The other sources still belong to this pod.
            self._over.add(source)
        except RefusedKey as error:
            self._refuse(source, path, error)
        except S3Error as error:  # With the bucket down, each file would wait for its timeout.
            self._over.add(source)
            self._errors.append(error)
        except FileNotFoundError as error:
            log.debug("a file of %s was not uploaded: %s", source.path, error)
        except OSError as error:
            self._refuse(source, path, RefusedKey(error.strerror or repr(error)))

    def _refuse(self, source: Source, path: Path, error: RefusedKey) -> None:
        self._refused_now.add(path)
        self._refused.add(path, str(error))
        if source.essential and self._last:
            self._errors.append(RefusedKey(f"{str(path)!a} is not uploaded: {error}"))

    def refuses(self, path: Path) -> bool:
        """Return whether a file was refused in this pass."""
        return path in self._refused_now

    def accepted(self, path: Path) -> None:
        """Note that a file was uploaded."""
        self._refused.accepted(path)

    def over(self, source: Source) -> bool:
        """Return whether nothing more of a source can be uploaded in this pass."""
        return source in self._over

    def passes_over(self, source: Source, path: Path) -> bool:
        """Return whether this pass does not try a file: its source is over, or it was refused a short time ago."""
        return self.over(source) or (not self._last and self._refused.waits(path))

    def raise_worst(self) -> None:
        """Raise an error of this pass if there is one; an error that is not transient takes precedence.

        A file that can't be uploaded for a lasting reason is among the refused files. It makes an error only if the
        program has ended, and if the file's source is essential.
        """
        if self._errors:
            raise min(self._errors, key=lambda error: error.transient)
