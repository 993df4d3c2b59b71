"""Six real libraries' saves, replayed from recordings of their system calls: captures have whole checkpoints alone.

`tests/layouts` has the programs and makes the recordings. Here the saves take as long as those of large models.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import pytest
from tests.trainer.test_capture import SETTLE, Disk

from dtj_trainer.artifacts.capture import Capture, FolderState, Look, Node, is_below
from dtj_trainer.artifacts.folder_captures import is_left_out

RECORDINGS = sorted((Path(__file__).parents[1] / "layouts/recordings").glob("*.tsv"))
IDLE = 30.0
"""Seconds between two saves."""


@dataclass
class Folder(Disk):
    """A folder to which recorded operations are applied."""

    removed: set[str] = field(default_factory=set)
    """Paths of which a part has been removed."""

    def apply(self, what: str, path: str, more: str, archives: set[str]) -> None:
        if what == "create":
            self.begin(path, archive=path in archives)
        elif what == "open":
            self.open.add(self.nodes[path].inode)
        elif what == "write":
            self.grow(path, int(more.split()[0]))
        elif what == "close":
            self.open.discard(self.nodes[path].inode)
            if path in self.archives:
                self.archives[path] = True
            self.whole.add(self.nodes[path])
        elif what == "rename":
            self.rename(path, more)
        elif what == "mkdir":
            self.put(Node(path, "directory"))
        elif what == "symlink":
            self.put(Node(path, "link", target=more))
        elif what == "remove":
            self.remove(path)
            self.removed.update(str(above) for above in PurePosixPath(path).parents)

    def look(self) -> Look:
        nodes = {
            path: node
            for path, node in self.nodes.items()
            if not any(is_left_out(name) for name in path.split("/"))
        }
        renamed = frozenset(path for path in self.renamed & nodes.keys() if "/" not in path)
        archives = {path: whole for path, whole in self.archives.items() if path in nodes}
        return Look(self.now, nodes, frozenset(self.open), renamed, archives)


class Replay:
    """A recording, with the same seconds for each save, and pauses before each of its files but the first."""

    def __init__(self, recording: Path, seconds: float, pause: float) -> None:
        self.folder = Folder()
        self.saves: list[Mapping[str, Node]] = []
        """The folder after each save."""
        self._made: list[set[str]] = []
        """The folders that each save made."""
        lines = [[*line.split("\t"), ""][:4] for line in recording.read_text().splitlines()]
        self._lines = [(float(at), what, path, more) for at, what, path, more in lines]
        self._seconds, self._pause = seconds, pause

    def moments(self) -> Iterator[bool]:
        """Yield after each operation, and each second; whether a save is complete and IDLE seconds have passed."""
        second, begin, lines, made = 0, 3.0, self._lines, set[str]()
        first = 0
        for number, (at, what, path, more) in enumerate(lines):
            end = next((at for at, what, *_ in lines[number:] if what == "saved"), lines[-1][0])
            scale = self._seconds / max(end - lines[first][0], 1e-9)
            pauses = sum(what == "create" for _, what, *_ in lines[first + 1 : number + 1]) - 1
            moment = begin + (at - lines[first][0]) * scale + self._pause * max(pauses, 0)
            while second < moment:
                self.folder.at(second)
                yield False
                second += 1
            self.folder.at(moment)
            if what == "saved":
                self.saves.append(dict(self.folder.look().nodes))
                self._made.append(made)
                while second < moment + IDLE:
                    self.folder.at(second)
                    yield False
                    second += 1
                yield True
                begin, first, made = moment + IDLE, min(number + 1, len(lines) - 1), set()
            else:
                made |= {path} if what == "mkdir" else set()
                self.folder.apply(what, path, more, self._archives_from(number))
                yield False

    def _archives_from(self, number: int) -> set[str]:
        _, what, path, _ = self._lines[number]
        if what != "create":
            return set()
        written = (more for _, what, of, more in self._lines[number:] if what == "write" and of == path)
        return {path} if next(written, "").endswith("zip") else set()

    def check(self, capture: Capture, end: Replay) -> None:
        """Check that a capture has whole files, whole folders from the second save on, and what links name.

        end: the same at its end, which knows what each save will have when it is complete.
        """
        nodes = capture.nodes
        for path, node in nodes.items():
            assert node.kind != "file" or node in self.folder.whole, f"{path} is not complete"
            if node.kind == "link":
                target = (PurePosixPath(path).parent / node.target).as_posix()
                assert target in nodes, f"{path} leads to {node.target}, which is missing"
        for save, (then, made) in enumerate(zip(end.saves, end._made, strict=True), start=1):
            for folder in made - self.folder.removed if save > 1 else ():
                expected = {
                    path for path, node in then.items() if node.kind == "file" and is_below(path, {folder})
                }
                found = {path for path in expected if path in nodes}
                assert found in (expected, set()), f"{folder} lacks {sorted(expected - found)}"
            pointer = then.get("latest")
            if pointer and nodes.get("latest") == pointer:
                lacking = {path for path in then if is_below(path, {f"step-{save}"})} - nodes.keys()
                assert not lacking, f"latest names step-{save}, which lacks {lacking}"


def new(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """What counts of a capture: the times of folders do not."""
    return {
        path: replace(node, changed_ns=0) if node.kind == "directory" else node
        for path, node in nodes.items()
    }


def test_the_recordings_are_of_all_six_libraries() -> None:
    assert {file.stem.partition("-")[0] for file in RECORDINGS} == {
        "accelerate_state",
        "dcp_fsdp2",
        "hf_trainer",
        "ignite_handlers",
        "keras_fit",
        "lightning_fit",
    }


@pytest.mark.parametrize(("seconds", "pause"), [(0.5, 0), (90, 0), (20, 8)])
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda file: file.stem)
def test_captures_of_a_library_are_whole_whenever_they_are_taken_and_whenever_it_is_killed(
    recording: Path, seconds: float, pause: float
) -> None:
    replay, captures = Replay(recording, seconds, pause), FolderState(SETTLE)
    end = Replay(recording, seconds, pause)
    assert sum(end.moments()) == 4
    for is_over in replay.moments():
        look = replay.folder.look()
        killed = copy.deepcopy(captures)
        killed.see(replace(look, open=frozenset()))
        if isinstance(found := killed.capture(died_ns=replay.folder.now), Capture):
            replay.check(found, end)
        captures.see(look)
        if isinstance(found := captures.capture(), Capture):
            replay.check(found, end)
            captures.taken(found)
        if is_over:
            assert new(captures.last) == new(replay.saves[-1]), f"after save {len(replay.saves)}"
