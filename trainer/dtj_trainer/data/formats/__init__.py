"""The formats of pictures with labels that dtj reads.

`FORMATS` are those of shards, which are read block by block. `data.dataset` reads the others, and small sets of
these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_trainer.data.formats.cifar import CIFAR10, CIFAR100
from dtj_trainer.data.formats.tar import Tar
from dtj_trainer.data.formats.tfrecord import TFRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.data.formats.format import Format

FORMATS: Mapping[str, Format] = {format_.name: format_ for format_ in (Tar(), TFRecord(), CIFAR10, CIFAR100)}
