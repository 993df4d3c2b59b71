"""Captures of a checkpoints folder, over histories of programs in virtual time.

What a history must hold is compared with the operations of its program, which the rules do not see.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj_trainer.artifacts.capture import (
    LOG_BYTES,
    NEVER_QUIET,
    SECOND,
    Capture,
    FolderState,
    Look,
    Node,
    Waits,
)

SETTLE = 5 * SECOND
HISTORIES = int(os.environ.get("DTJ_TEST_HISTORIES", "2000"))
FOR_EVER = 10**30
KEPT_AFTER = 12
"""A save that was complete for so many seconds is in a capture."""


@dataclass
class Disk:
    """A folder at a moment, and when each node came and went."""

    nodes: dict[str, Node] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    renamed: set[str] = field(default_factory=set)
    archives: dict[str, bool] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    now: int = 1000 * SECOND
    lives: dict[Node, list[int]] = field(default_factory=dict)
    whole: set[Node] = field(default_factory=set)
    """Nodes whose content the program has completed."""
    inodes: int = 0

    def at(self, seconds: float) -> Disk:
        """Go on to a moment, in seconds since the start."""
        self.now = max(self.now, round((1000 + seconds) * SECOND))
        return self

    def put(self, node: Node) -> None:
        self.now += 1
        self._gone(node.path)
        node = replace(node, changed_ns=self.now)
        self.nodes[node.path] = node
        self.lives[node] = [self.now, FOR_EVER]
        folder = node.path.rpartition("/")[0]
        if folder and folder not in self.nodes:
            self.put(Node(folder, "directory"))

    def _gone(self, path: str) -> None:
        if path in self.nodes:
            self.lives[self.nodes[path]][1] = self.now

    def begin(self, path: str, *, archive: bool = False) -> None:
        """Open a file for writing, and truncate it."""
        self.inodes += 1
        self.open.add(self.inodes)
        self.renamed.discard(path)
        if archive:
            self.archives[path] = False
        self.put(Node(path, "file", 0, inode=self.inodes))

    def grow(self, path: str, by: int = 100) -> None:
        node = self.nodes[path]
        self.put(replace(node, size=node.size + by))

    def close(self, path: str) -> None:
        self.grow(path)
        self.open.discard(self.nodes[path].inode)
        if path in self.archives:
            self.archives[path] = True
        self.whole.add(self.nodes[path])

    def write(self, path: str) -> None:
        self.begin(path)
        self.close(path)

    def rename(self, old: str, new: str) -> None:
        for path in [path for path in self.nodes if path == old or path.startswith(f"{old}/")]:
            node = self.nodes[path]
            complete = node in self.whole
            self._gone(path)
            del self.nodes[path]
            moved = new + path[len(old) :]
            if path in self.archives:
                self.archives[moved] = self.archives.pop(path)
            self.put(replace(node, path=moved))
            if complete:
                self.whole.add(self.nodes[moved])
        self.renamed.add(new)

    def remove(self, root: str) -> None:
        self.now += 1
        for path in [path for path in self.nodes if path == root or path.startswith(f"{root}/")]:
            self._gone(path)
            del self.nodes[path]
            self.archives.pop(path, None)

    def look(self) -> Look:
        # The walk leaves out temporary names.
        nodes = {path: node for path, node in self.nodes.items() if ".tmp" not in path}
        now = (frozenset(self.open), frozenset(self.renamed), dict(self.archives), dict(self.steps))
        return Look(self.now, nodes, *now)


# --- one rule each ------------------------------------------------------------------------------


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def captures() -> FolderState:
    return FolderState(SETTLE)


def until_capture(disk: Disk, captures: FolderState, seconds: float = 700.0) -> tuple[Capture, float]:
    """The next capture, and the seconds until then with a look a second and an unchanged folder."""
    began = disk.now
    while disk.now < began + seconds * SECOND:
        captures.see(disk.look())
        found = captures.capture()
        if isinstance(found, Capture):
            captures.taken(found)
            return found, (disk.now - began) / SECOND
        disk.now += SECOND
    pytest.fail(f"no capture: {found}")


def waits(disk: Disk, captures: FolderState) -> Waits:
    captures.see(disk.look())
    found = captures.capture()
    assert isinstance(found, Waits), found
    return found


def test_a_file_that_was_written_in_place_settles(disk: Disk, captures: FolderState) -> None:
    disk.write("a.bin")
    capture, seconds = until_capture(disk, captures)
    assert list(capture.nodes) == ["a.bin"]
    assert seconds == 5
    assert waits(disk, captures).reason == "no new file is complete"


def test_what_was_renamed_into_the_top_folder_settles_in_a_second(disk: Disk, captures: FolderState) -> None:
    disk.write("a.tmp/x.bin")
    disk.rename("a.tmp", "a")
    capture, seconds = until_capture(disk, captures)
    assert set(capture.nodes) == {"a", "a/x.bin"}
    assert seconds == 1


def test_deletions_alone_are_no_reason(disk: Disk, captures: FolderState) -> None:
    for name in ("a", "b"):
        disk.write(name)
    until_capture(disk, captures)
    disk.remove("a")
    disk.now += 60 * SECOND
    waits(disk, captures)
    disk.remove("b")
    disk.now += 60 * SECOND
    waits(disk, captures)


def test_a_file_that_stays_open_delays_the_others_for_two_minutes(disk: Disk, captures: FolderState) -> None:
    disk.begin("train.log")
    disk.write("a.bin")
    assert waits(disk, captures).path == "train.log"
    capture, seconds = until_capture(disk, captures)
    assert (set(capture.nodes), capture.passed_over, seconds) == ({"a.bin"}, ("train.log",), 120)


def test_a_large_open_file_takes_its_new_folder_with_it(disk: Disk, captures: FolderState) -> None:
    disk.write("run/a/x.bin")
    until_capture(disk, captures)
    disk.begin("run/b/deep/x.bin")
    disk.write("run/b/y.bin")
    disk.write("run/c.bin")
    captures.see(disk.look())
    disk.now += 100 * SECOND
    disk.grow("run/b/deep/x.bin", LOG_BYTES)
    capture, _ = until_capture(disk, captures)
    assert capture.passed_over == ("run/b",)
    assert {path for path, node in capture.nodes.items() if node.kind == "file"} == {
        "run/a/x.bin",
        "run/c.bin",
    }


def test_an_unfinished_file_keeps_its_stored_bytes(disk: Disk, captures: FolderState) -> None:
    disk.write("run/last.bin")
    stored, _ = until_capture(disk, captures)
    disk.begin("run/last.bin")
    captures.see(disk.look())
    disk.write("run/new.bin")
    capture, _ = until_capture(disk, captures)
    assert capture.nodes["run/last.bin"] == stored.nodes["run/last.bin"]
    assert "run/new.bin" in capture.nodes


def test_a_folder_with_fewer_kinds_than_its_elder_waits(disk: Disk, captures: FolderState) -> None:
    for name in ("model.bin", "state-1.bin", "state-2.bin"):
        disk.write(f"step-1/{name}")
    until_capture(disk, captures)
    disk.write("step-2/model.bin")
    disk.now += 60 * SECOND
    assert waits(disk, captures).path == "step-2"
    disk.write("step-2/state-1.bin")
    _, seconds = until_capture(disk, captures)
    assert seconds == 5


def test_a_shrunk_folder_is_taken_after_five_minutes(disk: Disk, captures: FolderState) -> None:
    for name in ("model.bin", "optimizer.bin"):
        disk.write(f"last/{name}")
    until_capture(disk, captures)
    disk.remove("last/optimizer.bin")
    disk.write("last/model.bin")
    capture, seconds = until_capture(disk, captures)
    assert seconds == pytest.approx(300, abs=1)
    assert "last/optimizer.bin" not in capture.nodes


def test_a_busy_file_delays_nothing_and_alone_is_due_every_15_seconds(
    disk: Disk, captures: FolderState
) -> None:
    taken = []
    for second in range(120):
        disk.at(second)
        if second % 2 == 0:
            disk.write("metrics.csv")
        if second == 60:
            disk.write("model.bin")
        captures.see(disk.look())
        found = captures.capture()
        if isinstance(found, Capture):
            captures.taken(found)
            taken.append((second, "model.bin" in found.nodes))
    assert len([at for at, _ in taken if 10 < at < 60]) in (3, 4)
    assert next(at for at, model in taken if model) <= 60 + 15


def test_a_torn_archive_is_never_part_of_a_capture(disk: Disk, captures: FolderState) -> None:
    disk.write("a.bin")
    disk.begin("b.pt", archive=True)
    disk.open.clear()  # Its writer gave up.
    captures.see(disk.look())
    ended = captures.capture(ended=True)
    assert isinstance(ended, Capture)
    assert set(ended.nodes) == {"a.bin"}


def test_of_the_folders_of_save_the_newest_alone_belongs_to_a_capture(
    disk: Disk, captures: FolderState
) -> None:
    for step in (50, 100):
        disk.write(f"{step}.tmp/state.pt")
        disk.rename(f"{step}.tmp", str(step))
        disk.steps[str(step)] = step
        capture, seconds = until_capture(disk, captures)
        assert seconds == 0
        assert set(capture.nodes) == {str(step), f"{step}/state.pt"}


def test_a_new_folder_of_save_waits_for_nothing(disk: Disk, captures: FolderState) -> None:
    disk.write("side.bin")
    until_capture(disk, captures)
    disk.begin("side.bin")
    disk.write("50.tmp/state.pt")
    disk.rename("50.tmp", "50")
    disk.steps["50"] = 50
    capture, seconds = until_capture(disk, captures)
    assert (seconds, set(capture.nodes)) == (0, {"side.bin", "50", "50/state.pt"})
    assert capture.nodes["side.bin"] in disk.whole
    assert waits(disk, captures).path == "side.bin"


def test_what_happens_while_a_capture_is_stored_belongs_to_the_next(
    disk: Disk, captures: FolderState
) -> None:
    disk.write("a")
    disk.write("b")
    disk.now += 5 * SECOND
    captures.see(disk.look())
    first = captures.capture()
    assert isinstance(first, Capture)
    disk.remove("a")
    disk.now += SECOND
    disk.write("c")
    disk.begin("d")
    captures.see(disk.look())
    captures.taken(first)
    disk.now += SECOND
    captures.see(disk.look())
    killed = captures.capture(died_ns=disk.now)
    assert killed == Waits("no new file is complete")
    disk.close("d")
    second, _ = until_capture(disk, captures)
    assert set(second.nodes) == {"b", "c", "d"}


def test_a_kill_in_a_save_leaves_the_moment_before_it(disk: Disk, captures: FolderState) -> None:
    disk.write("step-1/model.bin")
    disk.write("latest")
    stored, _ = until_capture(disk, captures)
    disk.now += 10 * SECOND
    captures.see(disk.look())
    disk.write("step-2/model.bin")
    disk.write("latest")
    disk.now += SECOND
    captures.see(disk.look())
    assert isinstance(captures.capture(died_ns=disk.now), Waits)
    disk.now += 10 * SECOND
    captures.see(disk.look())
    late = captures.capture(died_ns=disk.now)
    assert isinstance(late, Capture)
    assert late.nodes["latest"] != stored.nodes["latest"]


def test_a_folder_that_is_never_quiet_has_a_capture_after_half_a_minute(
    disk: Disk, captures: FolderState
) -> None:
    for second in range(60):
        if second % 3 == 0:
            disk.at(second).write(f"model-{second}.bin")
        captures.see(disk.at(second).look())
        found = captures.capture()
        if isinstance(found, Capture):
            break
    assert 30 <= second <= 33


def test_a_kill_leaves_what_was_removed_since(disk: Disk, captures: FolderState) -> None:
    for name in ("before.bin", "since.bin"):
        disk.write(name)
    until_capture(disk, captures)
    began = disk.now // SECOND - 1000
    for second, operate in enumerate(
        (
            lambda: disk.write("new.bin"),
            lambda: disk.remove("before.bin"),
            lambda: disk.begin("unfinished.bin"),
            lambda: disk.remove("since.bin"),
            lambda: None,
        )
    ):
        operate()
        disk.at(began + 2 * (second + 1))
        waits(disk, captures)
    found = captures.capture(died_ns=disk.now)
    assert isinstance(found, Capture)
    assert set(found.nodes) == {"new.bin", "since.bin"}


@pytest.mark.parametrize(("every", "saved", "killed"), [(5.5, 3.0, 17.0), (2.0, 13.5, 14.2)])
def test_a_kill_in_the_write_of_a_side_file_takes_no_save_away(
    disk: Disk, captures: FolderState, every: float, saved: float, killed: float
) -> None:
    """A side file is new since the start. Only its last write is unfinished."""
    times = [number * every for number in range(1 + int(killed / every))]
    for second in [*range(int(killed) + 1), killed]:
        while times and times[0] <= second:
            disk.at(times.pop(0)).write("side.csv")
        if saved <= second and "step-1" not in disk.nodes:
            disk.at(saved).write("step-1.tmp/model.bin")
            disk.rename("step-1.tmp", "step-1")
        captures.see(disk.at(second).look())
        if second < killed:
            assert "step-1" not in getattr(captures.capture(), "nodes", {}) or every < 5
    found = captures.capture(died_ns=disk.now)
    assert isinstance(found, Capture)
    assert "step-1/model.bin" in found.nodes


# --- histories ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """How a program saves, and how it ends. Seconds."""

    saves: int
    files: int
    archives: bool
    renames: bool
    writing: float
    gap: float
    idle: float
    parent: str
    pointer: bool
    keep: int
    side: float
    sending: float
    killed_at: float
    """As a part of the whole time; above 1: the program ends by itself."""

    def operations(self) -> Iterator[tuple[float, Callable[[Disk], None], int | None]]:
        """Yield what the program does in order, when, and the number of the save that is complete afterwards."""
        at = 3.0
        for save in range(1, self.saves + 1):
            folder = f"{self.parent}step-{save}"
            into = f"{folder}.tmp" if self.renames else folder
            for number in range(self.files):
                at += self.gap * bool(number)
                path = f"{into}/part{chr(97 + number)}-{save}.pt"
                yield at, lambda disk, path=path: disk.begin(path, archive=self.archives), None
                yield at + self.writing / 2, lambda disk, path=path: disk.grow(path), None
                at += self.writing
                yield at, lambda disk, path=path: disk.close(path), None
            if self.renames:
                yield at, lambda disk, into=into, folder=folder: disk.rename(into, folder), None
            if self.pointer:
                at += 0.2
                yield at, lambda disk, save=save: self._point(disk, save), None
            old = f"{self.parent}step-{save - self.keep}"
            if self.keep and save > self.keep:
                at += 0.2
                yield at, lambda disk, old=old: disk.remove(old), None
            yield at, lambda disk: None, save
            at += self.idle
        yield at, lambda disk: None, None

    def _point(self, disk: Disk, save: int) -> None:
        path = f"{self.parent}latest"
        disk.begin(path)
        disk.grow(path, 1000 * save)
        disk.close(path)

    def files_of(self, save: int) -> set[str]:
        return {f"{self.parent}step-{save}/part{chr(97 + number)}-{save}.pt" for number in range(self.files)}


@dataclass
class History:
    """What a program did, and the captures that were taken."""

    program: Program
    disk: Disk
    captures: list[tuple[int, Capture, Mapping[str, Node]]]
    """When, the capture, and the capture before."""
    complete: dict[int, int]
    """When each save was complete."""
    end: int


def run(program: Program) -> History:
    disk, captures = Disk(), FolderState(SETTLE)
    history = History(program, disk, [], {}, 0)
    operations = list(program.operations())
    end = operations[-1][0]
    killed = program.killed_at < 1
    stop = end * program.killed_at if killed else end
    if program.side:
        times = [number * program.side for number in range(int(stop / program.side))]
        operations += [(at, lambda disk: disk.write(f"{program.parent}side.csv"), None) for at in times]
    operations = sorted(((*each,) for each in operations if each[0] <= stop), key=lambda each: each[0])
    last: Mapping[str, Node] = {}

    under_way: tuple[Capture, int] | None = None

    def look(**how: object) -> None:
        nonlocal last, under_way
        captures.see(disk.look())
        while under_way is None or how or disk.now >= under_way[1]:
            if under_way:
                capture, under_way = under_way[0], None
                # It is void if a file changed before it was sent. The side file is small, and sent at once.
                new = [node for path, node in capture.nodes.items() if last.get(path) != node]
                if all(disk.lives[node][1] == FOR_EVER for node in new if not node.path.endswith("side.csv")):
                    history.captures.append((disk.now, capture, last))
                    captures.taken(capture)
                    last = capture.nodes
            found = captures.capture(**how)  # type: ignore[arg-type]
            if not isinstance(found, Capture):
                return
            under_way = found, disk.now + round(program.sending * SECOND)

    second = 0
    for at, operate, save in operations:
        while second < at:
            disk.at(second)
            look()
            second += 1
        operate(disk.at(at))
        if save is not None:
            history.complete[save] = disk.now
    while second < stop:
        disk.at(second)
        look()
        second += 1
    disk.at(stop)
    history.end = disk.now
    if killed:
        disk.open.clear()
        look(died_ns=disk.now)
    else:
        look(ended=True)
    return history


PROGRAMS = st.builds(
    Program,
    saves=st.integers(2, 4),
    files=st.integers(1, 3),
    archives=st.booleans(),
    renames=st.booleans(),
    writing=st.sampled_from([0.1, 1.5, 7.0]),
    gap=st.sampled_from([0.0, 0.4, 2.0, 8.0, 20.0, 60.0]),
    idle=st.floats(13, 30),
    parent=st.sampled_from(["", "run/"]),
    pointer=st.booleans(),
    keep=st.sampled_from([0, 1, 2]),
    side=st.sampled_from([0.0, 0.0, 2.0, 6.0, 7.0, 11.0]),
    sending=st.sampled_from([0.0, 0.0, 5.0]),
    killed_at=st.floats(0.1, 1.2),
)


@settings(max_examples=HISTORIES, deadline=None)
@given(PROGRAMS)
def test_histories(program: Program) -> None:
    history = run(program)
    whole = {node.path: node for node in history.disk.whole}
    for _, capture, before in history.captures:
        files = {path: node for path, node in capture.nodes.items() if node.kind == "file"}
        # Each capture is of one moment, but for stored bytes of what is unfinished.
        fresh = [history.disk.lives[node] for path, node in files.items() if before.get(path) != node]
        assert max(born for born, _ in fresh) < min(died for _, died in fresh)
        for save in range(1, program.saves + 1):
            found = program.files_of(save) & files.keys()
            torn = {path for path in found if files[path] not in history.disk.whole}
            complete = found == program.files_of(save) and not torn
            # No rule can know how many files the first save has.
            assert complete or not found or save == 1, f"save {save} is torn: {sorted(found)} of {capture}"
            pointer = files.get(f"{program.parent}latest")
            if pointer and pointer in history.disk.whole and (pointer.size - 100) // 1000 == save:
                assert complete, f"the pointer names save {save}, of which there is {sorted(found)}"
    assert whole or not history.captures
    # A side file that keeps changing may leave no quiet moment. A capture then comes after NEVER_QUIET.
    limit = KEPT_AFTER * SECOND + NEVER_QUIET * bool(program.side) + round(2 * program.sending * SECOND)
    kept = [save for save, at in history.complete.items() if at < history.end - limit]
    if program.killed_at >= 1:
        kept = list(history.complete)
    if kept:
        assert history.captures
        last = history.captures[-1][1].nodes
        assert any(program.files_of(save) <= last.keys() for save in range(kept[-1], program.saves + 1))
