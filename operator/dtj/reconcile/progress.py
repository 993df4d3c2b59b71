"""How far jobs are, asked of rank 0 of each while it runs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from pydantic import ValidationError

from dtj.api.base import ApiModel
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.reconcile.view import Key
from dtj_trainer.contract import PROGRESS_PORT

_log = logging.getLogger(__name__)
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
# One attempt's report is a few hundred bytes; a pod that sends more is not heard out.
_MOST_BYTES = 64 * 1024


class Report(ApiModel):
    """The answer of /progress (dtj_trainer.contract.Report), as far as the status shows it."""

    progress: ProgressStatus | None = None
    artifacts: ArtifactsStatus | None = None


@dataclass
class _Followed:
    address: str
    task: asyncio.Task[None]
    report: Report | None = None


class ProgressPoller:
    """Asks each followed job's rank 0 in turn; a pod that does not answer costs nothing but the question."""

    def __init__(self, moved: Callable[[Key], None], interval: float) -> None:
        """moved: told the key of a job whose report has changed. interval: seconds between two questions."""
        self._moved = moved
        self._interval = interval
        self._followed: dict[Key, _Followed] = {}
        self._session: aiohttp.ClientSession | None = None

    def report(self, key: Key) -> Report | None:
        """The job's last report, while it is followed."""
        followed = self._followed.get(key)
        return followed.report if followed else None

    def follow(self, key: Key, ip: str) -> None:
        """Ask the pod at this address from now on."""
        address = f"http://{f'[{ip}]' if ':' in ip else ip}:{PROGRESS_PORT}/progress"
        followed = self._followed.get(key)
        if followed is not None and followed.address == address:
            return
        self.leave(key)
        self._followed[key] = _Followed(address, asyncio.create_task(self._ask(key, address)))

    def leave(self, key: Key) -> None:
        """Ask no more."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.task.cancel()

    async def close(self) -> None:
        """Ask nobody any more."""
        for key in list(self._followed):
            self.leave(key)
        if self._session is not None:
            await self._session.close()

    async def _ask(self, key: Key, address: str) -> None:
        while True:
            # Jitter: a thousand jobs that started together are not asked together.
            await asyncio.sleep(self._interval * random.uniform(0.75, 1.25))  # noqa: S311
            report = await self._fetch(address)
            followed = self._followed.get(key)
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
