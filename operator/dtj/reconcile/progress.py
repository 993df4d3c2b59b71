"""How far jobs are, asked of those pods of each that know, while it runs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError, model_validator

from dtj.api.base import ApiModel
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.reconcile.view import Key
from dtj_trainer.contract import PROGRESS_PORT

_log = logging.getLogger(__name__)
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
# One attempt's report is a few hundred bytes; a pod that sends more is not heard out.
_MOST_BYTES = 64 * 1024


_BOTTLENECKS = {"ParameterServers": "ParameterServersSlow", "Worker": "StragglingWorker"}
"""Kind of a bottleneck in a report -> reason of the condition."""


class Report(ApiModel):
    """The answer of /progress (dtj_trainer.contract.Report), as far as the status shows it."""

    progress: ProgressStatus | None = None
    artifacts: ArtifactsStatus | None = None
    bottleneck: tuple[str, str] | None = None
    """Reason and message, from the report's progress."""

    @model_validator(mode="before")
    @classmethod
    def _lift_bottleneck(cls, data: Any) -> Any:
        """Take the bottleneck out of the progress; anything else than the contract's is left out."""
        if not isinstance(data, dict):
            return data
        progress = data.get("progress")
        found = progress.get("bottleneck") if isinstance(progress, dict) else None
        kind, message = (found.get("kind"), found.get("message")) if isinstance(found, dict) else (None, None)
        reason = _BOTTLENECKS.get(str(kind))
        return data | {"bottleneck": (reason, message) if reason and isinstance(message, str) else None}


@dataclass
class _Followed:
    address: str
    task: asyncio.Task[None]
    report: Report | None = None


class ProgressPoller:
    """Asks the followed pods of each job in turn; one that does not answer costs nothing but the question."""

    def __init__(
        self,
        moved: Callable[[Key], None],
        interval: float,
        port: Callable[[str], int] = lambda _: PROGRESS_PORT,
    ) -> None:
        """moved: told the key of a job whose report has changed. interval: seconds between two questions.
        port: on which a pod, by its name, answers.
        """
        self._moved = moved
        self._interval = interval
        self._port = port
        self._followed: dict[Key, dict[str, _Followed]] = {}
        self._session: aiohttp.ClientSession | None = None

    def report(self, key: Key, pod: str) -> Report | None:
        """The last report of a job's pod, while that is followed."""
        followed = self._followed.get(key, {}).get(pod)
        return followed.report if followed else None

    def follow(self, key: Key, pods: Mapping[str, str]) -> None:
        """Ask these pods of a job from now on, and no others of it. pods: name -> address."""
        known = self._followed.setdefault(key, {})
        for name, ip in pods.items():
            address = f"http://{f'[{ip}]' if ':' in ip else ip}:{self._port(name)}/progress"
            if name not in known or known[name].address != address:
                self._leave(key, name)
                known[name] = _Followed(address, asyncio.create_task(self._ask(key, name, address)))
        for name in known.keys() - pods.keys():
            self._leave(key, name)

    def leave(self, key: Key) -> None:
        """Ask no pod of the job any more."""
        for name in list(self._followed.get(key, ())):
            self._leave(key, name)
        self._followed.pop(key, None)

    def _leave(self, key: Key, name: str) -> None:
        followed = self._followed.get(key, {}).pop(name, None)
        if followed is not None:
            followed.task.cancel()

    async def close(self) -> None:
        """Ask nobody any more."""
        for key in list(self._followed):
            self.leave(key)
        if self._session is not None:
            await self._session.close()

    async def _ask(self, key: Key, name: str, address: str) -> None:
        while True:
            # Jitter: a thousand jobs that started together are not asked together.
            await asyncio.sleep(self._interval * random.uniform(0.75, 1.25))  # noqa: S311
            report = await self._fetch(address)
            followed = self._followed.get(key, {}).get(name)
            if report is not None and followed is not None and report != followed.report:
                followed.report = report
                self._moved(key)

    async def _fetch(self, address: str) -> Report | None:
        if self._session is None:
            # Pods' addresses are the cluster's own: never through a proxy.
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False)
        try:
            async with self._session.get(address, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                body = await response.content.read(_MOST_BYTES)
            return Report.model_validate_json(body, extra="ignore")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        except ValidationError as error:
            _log.warning("%s answered something else than a report: %s", address, error.errors()[0]["msg"])
            return None
