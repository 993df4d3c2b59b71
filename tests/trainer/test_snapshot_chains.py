"""Random attempts of one job. Each has a real folder. Agents are killed, the store fails, and an old agent goes on.

What holds after each request to the store: every manifest in the bucket is whole. A restore gives the folder of one
moment of the program: names, contents, links, and the order of times. Nothing is lost that was uploaded.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence, Superseded
from dtj_trainer.artifacts.manifest import Manifest
from dtj_trainer.artifacts.restore import ALL, Lineage, restore
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.snapshot import read_index

CHAINS = int(os.environ.get("DTJ_TEST_CHAINS", "6"))
ATTEMPTS = 6
SCRATCH_BYTES = 2000
"""More than one snapshot's files have here."""

State = tuple[tuple[str, str], ...]
"""Path and content of all files and links, the oldest first."""


class Killed(BaseException):
    """The agent dies at a request."""


def state_of(folder: Path) -> State:
    found = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    found.sort(key=lambda path: (path.lstat().st_mtime_ns, path))
    return tuple(
        (
            path.relative_to(folder).as_posix(),
            f"-> {path.readlink()}" if path.is_symlink() else path.read_text(),
        )
        for path in found
    )


class Program:
    """Writes, renames and removes files in its folder. All times differ, as on a slow machine."""

    _clock = itertools.count(1_700_000_000 * 10**9, 10**9)

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self._chance = folder, chance

    def act(self) -> None:
        """Do one thing."""
        chance, folder = self._chance, self.folder
        files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        kind = chance.random()
        if kind < 0.45 or not files:
            self._write(folder / f"f{chance.randint(0, 6)}")
        elif kind < 0.6:
            target = chance.choice(files)
            target.rename(target.with_name(f"g{chance.randint(0, 3)}"))
        elif kind < 0.7:
            chance.choice(files).unlink()
        elif kind < 0.8:
            link = folder / "latest"
            link.unlink(missing_ok=True)
            link.symlink_to(chance.choice(files).relative_to(folder))
            self._date(link)
        elif kind < 0.9:
            shutil.rmtree(folder / f"step-{chance.randint(1, 5)}", ignore_errors=True)
        else:
            made = folder / f"step-{chance.randint(1, 5)}"
            made.mkdir(exist_ok=True)
            for name in ("weights", "optimizer"):
                self._write(made / name)

    def _write(self, path: Path) -> None:
        path.write_text(str(self._chance.random()))
        self._date(path)

    def _date(self, path: Path) -> None:
        now = next(self._clock)
        os.utime(path, ns=(now, now), follow_symlinks=False)


class Chain:
    """A bucket, and the attempts that use it one after the other."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.bucket = Bucket()
        self.states: set[State] = {()}
        """The content of the program's folder at each moment at which an agent may have looked."""
        self.of_folder: dict[str, State] = {}
        """What the snapshots of complete passes have, by their folders in the bucket."""
        self.lineage, self.resume = ALL, "Auto"

    def store(self, gate: Gate | None = None) -> MemoryStore:
        return MemoryStore(self.bucket, gate or Gate())

    def manifests(self) -> list[Manifest]:
        return read_index(self.store().below("checkpoints")).newest_first()

    def check(self, _: str = "") -> None:
        """Every manifest is whole."""
        for manifest in self.manifests():
            for file in manifest.files:
                assert f"job/checkpoints/{file.key}" in self.bucket.objects, (manifest.folder, file)


class Attempt:
    """An agent with its program. Its store fails at times, and the agent may die at a request."""

    def __init__(self, chain: Chain, number: int) -> None:
        self.chain, self.number = chain, number
        self.dies_after = chain.chance.choice([None, None, chain.chance.randint(1, 60)])
        self.failing = 0.0
        store = chain.store(Gate(before=self._request, after=chain.check))
        self.fence = Fence(store, contract.CLAIM_FILE, number)
        self.folder = chain.root / f"attempt-{number}"
        self.folder.mkdir()
        self.program = Program(self.folder, chain.chance)
        self.checkpoints = store.below("checkpoints")
        self.keep = chain.chance.choice([1, 2, 3])
        self.uploader = CheckpointUploader(
            self.folder,
            self.checkpoints,
            fence=self.fence,
            keep=self.keep,
            settle_seconds=0.0,
            step_at=lambda _: None,
        )

    def _request(self, name: str) -> None:
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                raise Killed
        if self.chain.chance.random() < self.failing:
            raise S3Error(f"503 SlowDown: {name}", transient=True)

    @property
    def has_claimed(self) -> bool:
        """Whether the bucket says that this attempt writes."""
        claim = self.chain.bucket.objects.get(f"job/{contract.CLAIM_FILE}")
        return claim is not None and json.loads(claim)["attempt"] == self.number

    def begin(self) -> None:
        """Claim, and restore what the attempts before left."""
        chain = self.chain
        self.fence.hold()
        restored = restore(
            self.checkpoints,
            self.folder,
            chain.resume,
            kept=lambda index: index.kept(self.keep, 0),
            lineage=chain.lineage,
        )
        chosen, since = chain.lineage
        counting = [each for each in chain.manifests() if each.attempt >= since or each.folder == chosen]
        if restored is None:
            assert not counting
            return
        assert restored.manifest.folder == counting[0].folder
        expected = chain.of_folder.get(restored.manifest.folder)
        found = state_of(self.folder)
        assert found in chain.states
        assert expected in (None, found)
        self.uploader.note_restored(restored.manifest, own=restored.own)
        if chain.chance.random() < 0.5:
            self.uploader.upload_pass(ended=False, died_ns=None)  # Of nothing new.

    def train(self) -> None:
        """Let the program act between passes; its end is told in the last pass."""
        chain = self.chain
        passes = chain.chance.randint(1, 5)
        for number in range(passes):
            for _ in range(chain.chance.randint(1, 3)):
                self.program.act()
            state = state_of(self.folder)
            chain.states.add(state)
            self.failing = chain.chance.choice([0.0, 0.0, 0.1])
            over = number == passes - 1
            while True:
                try:
                    done = self.uploader.upload_pass(ended=over, died_ns=None)
                except S3Error as error:
                    if isinstance(error, Superseded):
                        raise
                    self.failing = 0.0
                    continue
                if done or not over:
                    break
            chain.check()
            if over and state:
                newest = chain.manifests()[0]
                # A folder from which everything was removed makes no snapshot, and neither does a removal alone.
                if newest.attempt == self.number and {file.path for file in newest.files} == {
                    path for path, content in state if not content.startswith("-> ")
                }:
                    chain.of_folder[newest.folder] = state

    def leftovers(self) -> int:
        """The bytes below the checkpoints that no manifest names."""
        named = {f"job/checkpoints/{file.key}" for each in self.chain.manifests() for file in each.files}
        return sum(
            len(content)
            for key, content in self.chain.bucket.objects.items()
            if key.startswith("job/checkpoints/") and not key.endswith("manifest.json") and key not in named
        )


@pytest.mark.parametrize("seed", range(CHAINS))
def test_no_chain_of_attempts_loses_what_was_uploaded(tmp_path: Path, seed: int) -> None:
    chain, before = Chain(tmp_path, seed), None
    for number in range(1, ATTEMPTS + 1):
        attempt = Attempt(chain, number)
        try:
            attempt.begin()
            attempt.train()
            if attempt.dies_after is None and chain.manifests():
                assert attempt.leftovers() <= SCRATCH_BYTES
        except Killed:
            pass  # Its zombie comes back, below.
        if before is not None and attempt.has_claimed:
            before.dies_after, before.failing = None, 0.0
            before.program.act()
            with suppress(Superseded):  # A zombie with nothing to upload asks nobody.
                before.uploader.upload_pass(ended=True, died_ns=None)
            with pytest.raises(Superseded):
                before.fence.hold()
        chain.check()
        before = attempt
        manifests = chain.manifests()
        if manifests and chain.chance.random() < 0.3:
            chosen = chain.chance.choice(manifests).folder
            chain.lineage = Lineage(chosen, number + 1)
            chain.resume = chain.store().below("checkpoints").uri(chosen)
