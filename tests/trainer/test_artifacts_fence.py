"""The fence of the bucket: whatever the order of two attempts' writes, the work of the newest attempt stays whole.

* writers that stop before any request and return
* claims: raised, lost, removed, made at the same time
* files and logs of an attempt that is over
* checkpoints: uploads and restores under a claim
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer.artifacts import sent_files
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence, Superseded
from dtj_trainer.artifacts.file_upload import FileUploader
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE
from dtj_trainer.artifacts.manifest import Manifest, folder_name, number_and_claim
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sync_loop import SyncLoop
from dtj_trainer.artifacts.upload_rules import Growing, Rule, UploadSource

PARTS = 6
OF_ONE_CHECKPOINT = 18
"""Requests from the look at the claim to the last removal, and the files after it."""
AT_ONCE = Rule()
APPENDED = Growing()


class Attempt:
    """The writing pod of one attempt, with the parts of dtj-launch that use the bucket."""

    def __init__(self, bucket: Bucket, number: int, folder: Path, *, whole: bool = False) -> None:
        """whole: a file that never changes lies beside the folders of `save`; all snapshots name one key."""
        self.number = number
        self.whole = whole
        self.folder = folder
        (folder / "checkpoints").mkdir(parents=True)
        self.gate = Gate()
        self.store = MemoryStore(bucket, self.gate)
        self.checkpoints = self.store.below("checkpoints")
        self.fence = Fence(self.store, "attempt.json", number)
        sources = [
            UploadSource(folder / "metrics.jsonl", "metrics.jsonl", APPENDED, self.fence),
            UploadSource(folder / "model.pt", "model/model.pt", AT_ONCE, self.fence),
        ]
        self.files = FileUploader(self.store, sources)
        self.uploader = CheckpointUploader(
            folder / "checkpoints",
            self.checkpoints,
            fence=self.fence,
            keep=1,
            settle_seconds=0.0,
            step_at=lambda _: None,
        )
        self.begun = False
        self.restored: Manifest | None = None

    def begin(self) -> None:
        self.begun = True
        self.fence.hold()
        found = restore(
            self.checkpoints, self.folder / "checkpoints", "Auto", kept=lambda index: index.kept(1, 0)
        )
        if found:
            self.restored = found.manifest
            self.uploader.note_restored(self.restored, own=True)

    def train(self, step: int) -> None:
        directory = self.folder / "checkpoints" / str(step)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        (directory / "state").write_text(f"step {step} of attempt {self.number}")
        (directory / MARK_FILE).write_text(json.dumps({"step": step}))
        if self.whole and not (directory.parent / "vocabulary").exists():
            (directory.parent / "vocabulary").write_text("the same for ever")
        assert self.uploader.upload_pass(ended=True, died_ns=None)
        with (self.folder / "metrics.jsonl").open("a") as metrics:
            metrics.write(f"step {step} of attempt {self.number}\n")
        (self.folder / "model.pt").write_text(f"model of step {step} of attempt {self.number}")
        assert self.files.upload_pass(ended=True, died_ns=None)

    def run(self, *steps: int) -> None:
        """Begin, train, and end as dtj-launch does: quietly when a later attempt has taken over."""
        try:
            if not self.begun:
                self.begin()
            for step in steps:
                self.train(step)
        except Superseded:
            assert self.fence.superseded


@pytest.fixture(autouse=True)
def one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate stops a writer before one request."""
    monkeypatch.setattr(sent_files, "SMALL_BYTES", 0)
    monkeypatch.setattr(sent_files, "TICK_NS", 0)


_parsed = functools.cache(Manifest.from_json)


def good_checkpoints(bucket: Bucket) -> list[Manifest]:
    """The complete ones, the newest first."""
    found = []
    for name, content in bucket.objects.items():
        if name.endswith("/manifest.json"):
            manifest = _parsed(content)
            below = name.rpartition("/checkpoints/")[0] + "/checkpoints/"
            stored = [bucket.objects.get(below + file.key) for file in manifest.files]
            if all(
                content is not None and hashlib.sha256(content).hexdigest() == file.sha256
                for content, file in zip(stored, manifest.files, strict=True)
            ):
                found.append(manifest)
    return sorted(found, key=lambda m: (m.claim, m.number), reverse=True)


class Turns:
    """Two threads, of which one runs at a time, up to its next request."""

    def __init__(self) -> None:
        self._turn = [threading.Semaphore(0), threading.Semaphore(0)]
        self._stopped = [threading.Semaphore(0), threading.Semaphore(0)]
        self._over = [False, False]
        self.errors: list[BaseException] = []

    def before(self, who: int) -> Callable[[str], None]:
        def wait(_: str) -> None:
            self._stopped[who].release()
            self._turn[who].acquire()

        return wait

    def start(self, who: int, run: Callable[[], None]) -> None:
        def body() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001 - told by the test's thread
                self.errors.append(error)
            self._over[who] = True
            self._stopped[who].release()

        threading.Thread(target=body, daemon=True).start()
        self._stopped[who].acquire()

    def let(self, who: int, requests: int | None, check: Callable[[], None]) -> bool:
        """Let one do so many requests, all that are left when None; whether it is at its end."""
        done = itertools.count() if requests is None else range(requests)
        for _ in done:
            if self._over[who]:
                return True
            self._turn[who].release()
            self._stopped[who].acquire()
            check()
        return self._over[who]


def interleave(
    folder: Path, stop_old: int, stop_new: int | None, *, whole: bool = False
) -> tuple[bool, bool]:
    """The old attempt has a checkpoint, and is stopped after so many further requests. A new one begins, and
    after so many requests of its own the old one comes back and runs to its end, then the new one.

    Returns whether each was at its end when it was stopped.
    """
    bucket, turns = Bucket(), Turns()
    old = Attempt(bucket, 1, folder / "old", whole=whole)
    new = Attempt(bucket, 2, folder / "new", whole=whole)
    old.run(100)
    published = good_checkpoints(bucket)

    def check() -> None:
        good = good_checkpoints(bucket)
        assert good, "there was a checkpoint, and now there is none"
        assert _age(good[0]) >= _age(published[-1]), "the newest checkpoint is lost"
        published.append(good[0])

    old.gate.before, new.gate.before = turns.before(0), turns.before(1)
    turns.start(0, functools.partial(old.run, 200, 300))
    old_over = turns.let(0, stop_old, check)
    there_before = good_checkpoints(bucket)[0]
    turns.start(1, functools.partial(new.run, 200, 300))
    new_over = turns.let(1, stop_new, check)
    turns.let(0, None, check)
    turns.let(1, None, check)
    assert turns.errors == []
    assert new.fence.superseded is None
    assert new.restored is not None, "the new attempt began anew, though there was a checkpoint"
    assert new.restored.step >= there_before.step
    assert bucket.objects["job/metrics.jsonl"] == b"step 200 of attempt 2\nstep 300 of attempt 2\n"
    assert bucket.objects["job/model/model.pt"] == b"model of step 300 of attempt 2"
    assert json.loads(bucket.objects["job/attempt.json"])["attempt"] == 2
    newest = good_checkpoints(bucket)[0]
    assert (newest.claim, newest.attempt, newest.step) == (2, 2, 300)
    key = "300-2/300/state" if whole else "300-2/state"
    assert bucket.objects[f"job/checkpoints/{key}"] == b"step 300 of attempt 2"
    assert whole == ("job/checkpoints/100/vocabulary" in bucket.objects)
    # The old one is done for, even if it was at its end before.
    before = dict(bucket.objects)
    old.gate.before = lambda _: None
    with pytest.raises(Superseded, match="attempt 2 has taken over s3://memory/job: this pod of attempt 1"):
        old.train(400)
    assert bucket.objects == before
    return old_over, new_over


def _age(manifest: Manifest) -> tuple[int, int]:
    return manifest.claim, manifest.number


@pytest.mark.parametrize("whole", [False, True])
def test_a_writer_stopped_before_any_request_comes_back_after_the_new_attempts_end(tmp_path, whole):
    for stop in itertools.count():
        old_over, new_over = interleave(tmp_path / str(stop), stop, None, whole=whole)
        assert new_over
        if old_over:
            break
    assert stop >= (25 if whole else 30)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_writer_stopped_before_any_request_comes_back_before_any_of_the_new_one(tmp_path, part):
    """All pairs of a request of the first writer's next checkpoint and one of the second writer."""
    cases = 0
    for stop_old in range(part, OF_ONE_CHECKPOINT, PARTS):
        for stop_new in itertools.count():
            folder = tmp_path / f"{stop_old}-{stop_new}"
            old_over, new_over = interleave(folder, stop_old, stop_new, whole=part % 2 == 1)
            assert not old_over
            shutil.rmtree(folder)
            cases += 1
            if new_over:
                break
    assert cases >= 30


# --- the claim ---------------------------------------------------------------------------------


def claim(bucket: Bucket, number: int, gate: Gate | None = None) -> Fence:
    return Fence(MemoryStore(bucket, gate or Gate()), "attempt.json", number)


def claimed(bucket: Bucket) -> tuple[int, int]:
    content = json.loads(bucket.objects["job/attempt.json"])
    return content["attempt"], content["number"]


def test_a_claim_is_only_ever_raised():
    bucket = Bucket()
    first, third = claim(bucket, 1), claim(bucket, 3)
    first.hold()
    assert claimed(bucket) == (1, 1)
    third.hold()
    assert claimed(bucket) == (3, 3)
    for late in (first, claim(bucket, 2)):
        with pytest.raises(Superseded, match="attempt 3 has taken over") as caught:
            late.hold()
        assert not caught.value.transient
    assert claimed(bucket) == (3, 3)
    third.hold()


def test_who_has_lost_its_claim_asks_no_more_and_tells_it_once():
    bucket, told, requests = Bucket(), [], []
    old = Fence(
        MemoryStore(bucket, Gate(requests.append)), "attempt.json", 1, lambda: told.append("superseded")
    )
    old.hold()
    claim(bucket, 2).hold()
    requests.clear()
    for _ in range(3):
        with pytest.raises(Superseded):
            old.hold()
    bucket.objects.clear()
    with pytest.raises(Superseded):
        old.hold()
    assert told == ["superseded"]
    assert requests == ["get attempt.json"]


def test_of_one_attempt_the_pod_that_was_started_last_writes_and_shares_no_folder():
    bucket = Bucket()
    first, second, next_attempt = claim(bucket, 1), claim(bucket, 1), claim(bucket, 2)
    first.hold()
    second.hold()
    with pytest.raises(Superseded):
        first.hold()
    next_attempt.hold()
    assert [fence.number for fence in (first, second, next_attempt)] == [1, 2, 3]


def test_a_claim_that_somebody_removed_is_made_again():
    bucket = Bucket()
    fence = claim(bucket, 2)
    fence.hold()
    bucket.objects.clear()
    fence.hold()
    assert claimed(bucket) == (2, 2)


@pytest.mark.parametrize("first", [None, 1])
def test_a_claim_whose_answer_was_lost_is_ones_own(first):
    """The store took it; botocore's second try, or the caller's, meets the first one."""
    bucket, answers = Bucket(), itertools.count()
    if first:
        claim(bucket, first).hold()

    def lose_the_first_answer(request: str) -> None:
        if next(answers) == 0:
            raise S3Error("the connection broke", transient=True)

    fence = claim(bucket, 2, Gate(after=lose_the_first_answer))
    with pytest.raises(S3Error, match="the connection broke"):
        fence.hold()
    fence.hold()
    assert claimed(bucket) == (2, 2)
    assert fence.number == 2


@pytest.mark.parametrize("attempts", [(1, 2), (2, 1), (3, 3)])
def test_of_two_that_claim_at_the_same_time_one_has_it_at_any_moment(attempts):
    for first, second in itertools.product(range(7), repeat=2):
        bucket, turns = Bucket(), Turns()
        fences = [
            Fence(MemoryStore(bucket, Gate(turns.before(who))), "attempt.json", attempt)
            for who, attempt in enumerate(attempts)
        ]

        def hold(fence: Fence) -> None:
            with contextlib.suppress(Superseded):
                fence.hold()

        for who, fence in enumerate(fences):
            turns.start(who, functools.partial(hold, fence))
        for who, requests in ((0, first), (1, second), (0, None), (1, None)):
            turns.let(who, requests, lambda: None)
        assert turns.errors == []
        holders = []
        for fence in fences:
            fence._store._gate.before = lambda _: None
            with contextlib.suppress(Superseded):
                fence.hold()
                holders.append(fence)
        assert len(holders) == 1
        assert claimed(bucket) == (max(attempts), holders[0].number)


def test_what_is_no_claim_is_not_overwritten():
    bucket = Bucket({"job/attempt.json": b"[1]"})
    with pytest.raises(S3Error, match=r"s3://memory/job/attempt.json can't be read .* delete it if no pod"):
        claim(bucket, 1).hold()
    assert bucket.objects == {"job/attempt.json": b"[1]"}


@pytest.mark.parametrize("conditions", ["refused", "ignored", "only IfNoneMatch"])
def test_without_conditional_writes_the_claim_is_still_looked_at(tmp_path, caplog, conditions):
    bucket = Bucket(conditions=conditions)
    old, new = Attempt(bucket, 1, tmp_path / "old"), Attempt(bucket, 2, tmp_path / "new")
    old.run(100)
    new.run(200)
    old.run(300)
    assert old.fence.superseded
    assert bucket.objects["job/metrics.jsonl"] == b"step 200 of attempt 2\n"
    assert [m.step for m in good_checkpoints(bucket)] == [200]
    warnings = [r.getMessage() for r in caplog.records if "no conditional writes" in r.getMessage()]
    # One that ignores conditions is found out by the second attempt: at the first nothing is in the way.
    assert len(warnings) == (2 if conditions == "refused" else 1)
    assert warnings[0].startswith("the store of s3://memory/job has no conditional writes")


# --- files -------------------------------------------------------------------------------------


def test_a_file_whose_answer_was_lost_is_put_again(tmp_path):
    bucket, lost = Bucket(), []

    def lose(request: str) -> None:
        if "attempt" not in request and request not in lost:
            lost.append(request)
            raise S3Error("the connection broke", transient=True)

    attempt = Attempt(bucket, 1, tmp_path / "pod")
    attempt.fence.hold()
    for text in ("one", "two"):
        (attempt.folder / "metrics.jsonl").write_text(text)
        attempt.gate.after = lose
        with pytest.raises(S3Error, match="the connection broke"):
            attempt.files.upload_pass(ended=True, died_ns=None)
        assert attempt.files.upload_pass(ended=True, died_ns=None)
        assert bucket.objects["job/metrics.jsonl"] == text.encode()
        lost.clear()
    assert attempt.fence.superseded is None


def test_a_file_that_somebody_removed_or_changed_is_put_again(tmp_path):
    bucket = Bucket()
    attempt = Attempt(bucket, 1, tmp_path / "pod")
    for change in (
        lambda o: None,
        lambda o: o.pop("job/metrics.jsonl"),
        lambda o: o.update({"job/metrics.jsonl": b""}),
    ):
        with (attempt.folder / "metrics.jsonl").open("a") as metrics:
            metrics.write("line\n")
        change(bucket.objects)
        assert attempt.files.upload_pass(ended=True, died_ns=None)
    assert bucket.objects["job/metrics.jsonl"] == b"line\n" * 3


def test_a_log_is_uploaded_even_when_a_later_attempt_writes(tmp_path):
    bucket = Bucket()
    attempt = Attempt(bucket, 1, tmp_path / "pod")
    attempt.files.sources.append(UploadSource(attempt.folder / "log", "logs/attempt-1/log", APPENDED))
    attempt.fence.hold()
    claim(bucket, 2).hold()
    for name in ("log", "metrics.jsonl"):
        (attempt.folder / name).write_text("text")
    assert attempt.files.upload_pass(ended=True, died_ns=None)
    assert set(bucket.objects) == {"job/attempt.json", "job/logs/attempt-1/log"}


def test_a_growing_file_costs_one_look_at_the_claim_and_one_put(tmp_path):
    requests: list[str] = []
    attempt = Attempt(Bucket(), 1, tmp_path / "pod")
    attempt.fence.hold()
    attempt.gate.before = requests.append
    for _ in range(2):
        with (attempt.folder / "metrics.jsonl").open("a") as metrics:
            metrics.write("line\n")
        assert attempt.files.upload_pass(ended=True, died_ns=None)
    assert requests == ["get attempt.json", "put metrics.jsonl"] * 2


# --- checkpoints -------------------------------------------------------------------------------


def test_a_checkpoint_costs_three_looks_at_the_claim(tmp_path):
    requests: list[str] = []
    attempt = Attempt(Bucket(), 1, tmp_path / "pod")
    attempt.run(100)
    attempt.gate.before = requests.append
    attempt.train(200)
    before_files = requests[: requests.index("put metrics.jsonl")]
    assert before_files.count("get attempt.json") == 3 + 1  # the last one is for metrics.jsonl
    assert [r for r in before_files if r.startswith("get") and "attempt" not in r] == []


def test_a_restore_looks_again_when_the_checkpoint_it_fetches_is_removed(tmp_path):
    """By a writer that has a newer one: a ps restores while the chief goes on, or a job from a running one."""
    bucket = Bucket()
    writer = Attempt(bucket, 1, tmp_path / "writer")
    writer.run(100)

    def goes_on(request: str) -> None:
        if request == "get 100/state" and not (tmp_path / "writer/checkpoints/200").exists():
            writer.train(200)

    reader = MemoryStore(bucket, Gate(goes_on)).below("checkpoints")
    (tmp_path / "reader").mkdir()
    found = restore(reader, tmp_path / "reader", "Auto")
    assert found is not None
    assert found.manifest.step == 200
    assert (tmp_path / "reader/200/state").read_text() == "step 200 of attempt 1"


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("0", (0, 1)),
        ("500", (500, 1)),
        ("500-2", (500, 2)),
        *[
            (name, None)
            for name in ("", "-", "500-", "-2", "500-1", "0500", "500-02", "a", "5-2-3", "٣", "latest")
        ],
    ],
)
def test_the_folder_of_a_checkpoint_tells_number_and_claim(folder, expected):
    assert number_and_claim(folder) == expected
    if expected:
        assert folder_name(*expected) == folder


def test_a_loop_ends_when_a_later_attempt_has_taken_over():
    def superseded(*, ended: bool, died_ns: int | None) -> bool:
        calls.append(ended)
        raise Superseded("attempt 2 has taken over")

    calls: list[bool] = []
    loop = SyncLoop("uploading", superseded)
    loop.start()
    for _ in range(2):
        with pytest.raises(Superseded, match="attempt 2 has taken over"):
            loop.wait(loop.ask(ended=True), lambda: 60.0)
    assert len(calls) == 1
    assert loop.failures == 0
