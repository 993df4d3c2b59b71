"""Programs of `make bench-data`: each reads one epoch of a set, and prints what it read as JSON.

The programs of other libraries run in an environment of their own, which has none of dtj's packages but this source.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import numpy as np

from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.data.index import Block, DataIndex, SplitIndex

BATCH = 64
CONNECTIONS = 8
WORKERS = 2
"""Processes of torch's loader, one a processor of the machine of the published figures."""
SEED = 1
Read = tuple[int, int]
"""Examples, and bytes of their pictures."""


class Given:
    """What a program gets. `examples`: the place of each picture, as key, offset and length."""

    def __init__(self, uri: str, *, decode: bool, workers: int) -> None:
        self.uri, self.decode, self.workers = uri, decode, workers
        self.bucket, _, self.prefix = uri.removeprefix("s3://").partition("/")
        self.client: Any = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
        name = f"{self.prefix}/_dtj_index.json"
        content = self.client.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        self.split: SplitIndex = DataIndex.from_json(content).splits["train"]

    def get(self, key: str, first: int, length: int) -> bytes:
        """GET a range."""
        last = first + length - 1
        answer = self.client.get_object(
            Bucket=self.bucket, Key=f"{self.prefix}/{key}", Range=f"bytes={first}-{last}"
        )
        return bytes(answer["Body"].read())

    def block(self, block: Block) -> bytes:
        """GET a block of the index."""
        return self.get(self.split.shards[block.shard].key, block.offset, block.length)

    def stretch(self, stretch: range) -> bytes:
        """GET blocks that lie next to each other."""
        blocks = self.split.blocks[stretch.start : stretch.stop]
        return self.get(
            self.split.shards[blocks[0].shard].key, blocks[0].offset, sum(block.length for block in blocks)
        )


def picture(content: bytes, *, decode: bool) -> int:
    """Decode a picture, or don't; its stored bytes."""
    if decode:
        pixels_of(content, PictureForm(224, 3), where="picture")
    return len(content)


def raw(given: Given) -> Iterator[Read]:
    """Ranged GETs by boto3 in threads, of the ranges that dtj asks for: what they bring is dropped."""
    from dtj_trainer.data.block_reader import stretches

    found = stretches(given.split)
    yield 0, 0
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        shuffled = (found[number] for number in np.random.default_rng(SEED).permutation(len(found)))
        for content in pool.map(given.stretch, shuffled):
            yield 0, len(content)


def decoding(given: Given) -> Iterator[Read]:
    """Pictures in memory, decoded by a thread a processor."""
    from dtj_trainer.data.formats.tar import Tar

    pictures = []
    for block in given.split.blocks:
        pictures += [bytes(one.picture) for one in Tar().examples(given.block(block), where="block")]
    yield 0, 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for size in pool.map(lambda content: picture(content, decode=True), pictures):
            yield 1, size


def dtj(given: Given) -> Iterator[Read]:
    """Batches of dtj, in the order of an epoch."""
    from dtj_trainer.data.cache import BlockCache
    from dtj_trainer.data.formats.format import Example
    from dtj_trainer.data.order import Order
    from dtj_trainer.data.pictures import Pictures
    from dtj_trainer.data.stored_set import open_stored_set

    folder = os.environ.get("BENCH_CACHE")
    opened = open_stored_set(given.uri, cache=BlockCache(Path(folder), 10**11) if folder else None)
    assert opened
    examples = opened.examples("train", PictureForm(224))
    order = Order(examples.blocks, seed=SEED, epoch=0)
    examples.expect(step.ids for step in order.steps(BATCH))
    yield 0, 0
    if given.decode:  # As the programs' loader does with two data workers.
        with ThreadPoolExecutor(2) as pool:
            ahead = deque[Future[Pictures]]()
            for step in order.steps(BATCH):
                ahead.append(pool.submit(examples.read, step.ids))
                if len(ahead) > 4:
                    yield len(ahead.popleft().result()), 0
            yield from ((len(one.result()), 0) for one in ahead)
    else:
        for step in order.steps(BATCH):
            found = [one for one in examples.stored(step.ids) if isinstance(one, Example)]
            yield len(found), sum(len(one.picture) for one in found)
    opened.close()


def webdataset(given: Given) -> Iterator[Read]:
    """Shards through curl, as webdataset reads http."""
    import webdataset as wds

    urls = [
        given.client.generate_presigned_url(
            "get_object", {"Bucket": given.bucket, "Key": f"{given.prefix}/{shard.key}"}
        )
        for shard in given.split.shards
    ]
    samples = wds.WebDataset([f"pipe:curl -s -L '{url}'" for url in urls], shardshuffle=len(urls), seed=SEED)
    samples = samples.shuffle(1000)
    yield from _loaded(samples.map(_Picture("jpg", given.decode)), given.workers)


def s3torchconnector(given: Given) -> Iterator[Read]:
    """Shards through the connector's stream, cut by tarfile."""
    import torch.utils.data
    from s3torchconnector import S3ClientConfig, S3IterableDataset

    objects = S3IterableDataset.from_prefix(
        f"{given.uri}/train/",
        region="us-east-1",
        endpoint=os.environ["AWS_ENDPOINT_URL_S3"],
        enable_sharding=True,
        s3client_config=S3ClientConfig(force_path_style=True),
        transform=_Members(given.decode),
    )
    yield 0, 0
    if given.workers:
        objects = torch.utils.data.DataLoader(
            objects, batch_size=None, num_workers=given.workers, collate_fn=_same
        )
    for sizes in objects:
        yield len(sizes), sum(sizes)


def grain(given: Given) -> Iterator[Read]:
    """A source of random access: a ranged GET for each picture, in grain's threads."""
    import grain.python as pygrain

    source = _Pictures(given)
    yield 0, 0
    chosen = pygrain.MapDataset.source(source).shuffle(seed=SEED).map(_Picture("", given.decode))
    options = pygrain.ReadOptions(num_threads=16, prefetch_buffer_size=512)
    for size in chosen.to_iter_dataset(options):
        yield 1, size


class _Picture:
    def __init__(self, key: str, decode: bool) -> None:
        self._key, self._decode = key, decode

    def __call__(self, sample: Any) -> int:
        return picture(sample[self._key] if self._key else sample, decode=self._decode)


class _Members:
    def __init__(self, decode: bool) -> None:
        self._decode = decode

    def __call__(self, reader: Any) -> list[int]:
        with tarfile.open(fileobj=reader, mode="r|") as archive:
            files = ((member.name, archive.extractfile(member)) for member in archive)
            return [
                picture(file.read(), decode=self._decode)
                for name, file in files
                if file and name.endswith(".jpg")
            ]


class _Pictures:
    """The pictures of a set, by number: their places are found by reading the headers of the shards."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._places: list[tuple[str, int, int]] = []
        for shard in given.split.shards:
            with tarfile.open(fileobj=io.BytesIO(given.get(shard.key, 0, shard.size))) as archive:
                self._places += [
                    (shard.key, member.offset_data, member.size)
                    for member in archive
                    if member.name.endswith(".jpg")
                ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> bytes:
        return self._given.get(*self._places[number])


def _loaded(dataset: Any, workers: int) -> Iterator[Read]:
    from torch.utils.data import DataLoader

    yield 0, 0
    if not workers:
        yield from ((1, size) for size in dataset)
        return
    for sizes in DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=_same):
        yield len(sizes), sum(sizes)


def _same(values: Any) -> Any:
    return values


PROGRAMS: dict[str, Callable[[Given], Iterator[Read]]] = {
    program.__name__: program for program in (raw, decoding, dtj, webdataset, s3torchconnector, grain)
}


def resident_bytes() -> int:
    """The memory of this process that isn't of files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


class Watch(threading.Thread):
    """Looks at the memory of this process every 50 ms; the most it was, in the first half and in the second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[int] = []
        self.end = threading.Event()

    def run(self) -> None:
        while not self.end.wait(0.05):
            self.seen.append(resident_bytes())


def main() -> None:
    """Read an epoch; print examples, bytes, seconds and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("uri")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    words = parser.parse_args()
    given = Given(words.uri, decode=words.decode, workers=words.workers)
    watch = Watch()
    watch.start()
    examples = size = 0
    began = time.monotonic()
    for more_examples, more_bytes in PROGRAMS[words.program](given):
        if (
            not examples and not more_examples and not more_bytes
        ):  # What came before the epoch is not of the epoch.
            began = time.monotonic()
        examples, size = examples + more_examples, size + more_bytes
    seconds = time.monotonic() - began
    watch.end.set()
    half = len(watch.seen) // 2
    print(
        json.dumps(
            {
                "examples": examples or given.split.examples,
                "bytes": size,
                "seconds": seconds,
                "first_half": max(watch.seen[:half], default=0),
                "second_half": max(watch.seen[half:], default=0),
            }
        )
    )


if __name__ == "__main__":
    main()
