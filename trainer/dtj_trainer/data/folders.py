"""Pictures in folders: which files are read, as by torchvision's ImageFolder, and which are passed over.

Standard library only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dtj_trainer.data.errors import DataNotFound
from dtj_trainer.data.layouts import PICTURE_FILES, SPLITS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_SHOWN = 8


@dataclass
class PassedOver:
    """Files of a set that are not read, counted by where they lie and by their ending."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, name: str, place: str) -> None:
        """Count a file. `place`: where files of this kind lie, for the sentence."""
        self.counts[place, _ending(name)] += 1

    def sentence(self) -> str:
        """Return a sentence with the kinds of files that were passed over; an empty text where there are none."""
        if not self.counts:
            return ""
        kinds = [f"{count:,} {ending} {place}" for (place, ending), count in self.counts.most_common(_SHOWN)]
        rest = sum(count for _, count in self.counts.most_common()[_SHOWN:])
        return "passed over: " + ", ".join(kinds + [f"{rest:,} others"] * bool(rest))


@dataclass(frozen=True)
class Folders:
    """Pictures in folders of splits.

    `splits`: the path and the class of each picture, by path. `without`: the folders of classes in which there is no
    picture, with what they have.
    """

    splits: dict[str, list[tuple[str, str]]]
    without: dict[tuple[str, str], Counter[str]]
    passed: PassedOver

    def check(self, wanted: Sequence[str]) -> None:
        """Raise DataNotFound for a class without a picture. `wanted`: the classes to take; empty for all."""
        for (folder, name), endings in self.without.items():
            if not wanted or name in wanted:
                there = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common(_SHOWN))
                raise DataNotFound(
                    f"has no picture in {folder}/{name}, where there is {there or 'nothing'}: pictures are "
                    f"{', '.join(PICTURE_FILES)}; convert or remove the folder, or leave the class out by --classes"
                )


def folders_of(names: Collection[str]) -> Folders:
    """Find the pictures of each split, `Training/Apple/1.jpg`. The folders in that of a class belong to the class.

    Other files are passed over: Thumbs.db, pictures of no class, folders whose names say no split such as
    `test-multiple_fruits/`. A name that ends with `/` is an empty folder.
    """
    splits: dict[str, list[tuple[str, str]]] = {}
    endings: dict[tuple[str, str], Counter[str]] = {}
    with_pictures = set[tuple[str, str]]()
    passed = PassedOver()
    for name in sorted(names):
        parts = name.split("/")
        file = parts[-1]
        if parts[0].lower() not in SPLITS or len(parts) < 2:
            if file:
                passed.add(name, "in no folder of a split")
        elif len(parts) == 2:
            if file:
                passed.add(name, f"directly in {parts[0]}/")
        elif file.lower().endswith(PICTURE_FILES):
            splits.setdefault(SPLITS[parts[0].lower()], []).append((name, parts[1]))
            with_pictures.add((parts[0], parts[1]))
        else:
            found = endings.setdefault((parts[0], parts[1]), Counter())
            if file:
                found[_ending(name)] += 1
                passed.add(name, "in folders of classes")
    without = {place: found for place, found in endings.items() if place not in with_pictures}
    return Folders(splits, without if splits else {}, passed if splits else PassedOver())


def hint(names: Collection[str]) -> str:
    """Return why no picture is in a folder of a split and a class; an empty text for a set without pictures."""
    pictures = [name.split("/") for name in sorted(names) if name.lower().endswith(PICTURE_FILES)]
    for parts in pictures:
        below = next((at for at in range(1, len(parts) - 2) if parts[at].lower() in SPLITS), 0)
        if below:
            there = "/".join(parts[:below])
            return f"has {parts[below]}/ only below {there}/: give the folder {there} instead"
    if not pictures:
        return ""
    for parts in pictures:
        if len(parts) == 2 and parts[0].lower() in SPLITS:
            return f"has {'/'.join(parts)} in no folder of a class: pictures lie in {parts[0]}/CLASS/"
    tops = sorted({f"{parts[0]}/" for parts in pictures if len(parts) > 1})
    return (
        f"has {len(pictures):,} pictures, and no folder of a split: they lie in train/CLASS/ and test/CLASS/; "
        f"there is {', '.join(tops[:_SHOWN]) or '/'.join(pictures[0])}"
    )


def beside(names: Collection[str], read: Collection[str]) -> PassedOver:
    """Count the files of a set of other formats that are not read."""
    passed = PassedOver()
    for name in set(names) - set(read):
        if not name.endswith("/"):
            passed.add(name, "beside the files of the set")
    return passed


def _ending(name: str) -> str:
    return PurePosixPath(name.lower()).suffix or "files without an ending"
