"""The options of the programs of past jobs, from the job.yaml that each job left, kept for jobs that have ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dtj.api.errors import Unusable
from dtj.api.program_words import options_of_manifest
from dtj.api.yaml_lines import first_object
from dtj.client.artifacts import explained
from dtj_trainer.contract import JOB_FILE
from dtj_trainer.contract.history import IndexEntry, index_key

if TYPE_CHECKING:
    from dtj.client.history_cache import HistoryCache
    from dtj_trainer.artifacts.store import Store

Options = dict[str, str]

_REQUESTS_AT_ONCE = 16
_MOST_BYTES = 2 << 20
"""Of a job.yaml. The API server takes no object of more than 1.5 MiB."""
_MOST_OPTIONS = 200
_MOST_LETTERS = 500


def read_options(store: Store, cache: HistoryCache, entries: Iterable[IndexEntry]) -> dict[str, Options]:
    """Return the options of jobs by uid, by one request for each job that the cache does not know.

    A job that left no job.yaml that can be read has no options. Raises Unreachable.
    """
    keys = {index_key(*entry): entry for entry in entries}
    known = cache.options(keys)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        missing = [key for key in keys if key not in known]
        read = dict(zip(missing, pool.map(lambda key: _read(store, keys[key].prefix), missing), strict=True))
    cache.keep_options((key, json.dumps(options)) for key, options in read.items())
    found = {key: _stored(text) for key, text in known.items()} | read
    return {keys[key].uid: options for key, options in found.items()}


def _read(store: Store, prefix: str) -> Options:
    from dtj_trainer.artifacts.s3 import NoSuchKey

    with explained():
        try:
            found = store.get_changed(f"{prefix}/{JOB_FILE}", None, _MOST_BYTES)
        except NoSuchKey:
            return {}
    try:
        manifest = first_object(found[0].decode(errors="replace"), JOB_FILE) if found else None
    except Unusable:
        manifest = None
    options = options_of_manifest(manifest or {})
    return {name[:_MOST_LETTERS]: options[name][:_MOST_LETTERS] for name in list(options)[:_MOST_OPTIONS]}


def _stored(text: str) -> Options:
    options = json.loads(text)
    return {str(name): str(value) for name, value in options.items()} if isinstance(options, dict) else {}
