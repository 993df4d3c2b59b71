"""What failed in a pass of uploads: one key that the store refuses keeps no other from its upload."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.s3 import S3Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtj_trainer.artifacts.upload_rules import Source

log = logging.getLogger(__name__)


class PassErrors:
    """The errors of one pass."""

    def __init__(self) -> None:
        self._errors: list[S3Error] = []
        self._over: set[Source] = set()

    @contextmanager
    def of(self, source: Source) -> Iterator[None]:
        """Note an S3Error of this block, or that a file can't be read. A file that went away is no error."""
        try:
            yield
        except Superseded:  # Other sources are still this pod's.
            self._over.add(source)
        except S3Error as error:
            self._errors.append(error)
            if error.transient:  # With the bucket away each file would wait for its timeout.
                self._over.add(source)
        except FileNotFoundError as error:
            log.debug("a file of %s was not uploaded: %s", source.path, error)
        except OSError as error:
            self._errors.append(S3Error(f"a file can't be uploaded: {error}", transient=False))

    def over(self, source: Source) -> bool:
        """Whether nothing more of a source can be uploaded in this pass."""
        return source in self._over

    def raise_worst(self) -> None:
        """Raise what failed, if something did; rather what can't pass by itself."""
        if self._errors:
            raise min(self._errors, key=lambda error: error.transient)
