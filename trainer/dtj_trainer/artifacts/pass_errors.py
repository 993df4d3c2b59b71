"""Collects the errors of a pass, so that a key that the store refuses does not prevent the upload of other keys."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.s3 import S3Error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.upload_rules import Source

log = logging.getLogger(__name__)


class PassErrors:
    """The errors of one pass."""

    def __init__(self) -> None:
        self._errors: list[S3Error] = []
        self._over: set[Source] = set()

    @contextmanager
    def of(self, source: Source, path: Path | None = None) -> Iterator[None]:
        """Record an S3Error of this block, or that a file can't be read, or that its name can't be a key.

        path: the file; by default that of the source. A file that was removed is not an error.
        """
        try:
            yield
        except Superseded:  # The other sources still belong to this pod.
            self._over.add(source)
        except S3Error as error:
            self._errors.append(error)
            if error.transient:  # With the bucket down, each file would wait for its timeout.
                self._over.add(source)
        except FileNotFoundError as error:
            log.debug("a file of %s was not uploaded: %s", source.path, error)
        except (OSError, UnicodeError) as error:
            name = ascii(os.fspath(path or source.path))
            self._errors.append(S3Error(f"{name} can't be uploaded: {error}", transient=False))

    def over(self, source: Source) -> bool:
        """Return whether nothing more of a source can be uploaded in this pass."""
        return source in self._over

    def raise_worst(self) -> None:
        """Raise an error of this pass if there is one; an error that is not transient takes precedence."""
        if self._errors:
            raise min(self._errors, key=lambda error: error.transient)
