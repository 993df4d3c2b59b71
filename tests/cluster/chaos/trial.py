"""The trial of one fault: the jobs start together, one moment hits all of them, and each job gets a verdict."""

from __future__ import annotations

import os
import random
import re
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from tests.cluster.chaos.faults import NOTHING, Fault, Hit
from tests.cluster.chaos.report import Row, table
from tests.cluster.chaos.trainings import STUB_STEPS, Moment, Training, manifest
from tests.cluster.chaos.verdict import Cost, judge, nothing_is_left
from tests.cluster.jobs import KubectlError, Namespace, until
from tests.cluster.progress import note

SEED = os.environ.get("DTJ_SEED") or secrets.token_hex(4)
"""Decides when each fault comes, and which replica it takes. DTJ_SEED repeats a run."""
LONGEST_WAIT = 5.0
"""The fault comes at most so many seconds after all stub trainings have a checkpoint and go on."""
LATEST_STEP = 75
"""A fault waits at most until a built-in program has trained so many of its 300 steps. The look at all trainings
before the fault takes seconds."""
SECONDS = 420
"""That a hit training may take to its end."""


class Trials:
    """The trials of a run, each made when it is asked for first."""

    def __init__(self, strategies: Mapping[str, Sequence[str]], *, real: bool) -> None:
        """`strategies`: which to try, by the name of the fault.

        real: the built-in programs are hit by every fault, not only by those that are left out of `make test`.
        """
        self._strategies = strategies
        self._real = real
        self._made: dict[str, dict[str, Cost | Exception]] = {}
        self.rows: list[Row] = []
        self._ended: list[Namespace] = []

    def end(self) -> None:
        """See that all jobs took with them what they had: it went while later trials ran."""
        try:
            for namespace in self._ended:
                nothing_is_left(namespace)
        finally:
            for namespace in self._ended:
                with suppress(KubectlError):
                    namespace.delete(wait=False)

    def of(self, fault: Fault, strategy: str) -> Cost:
        """What it cost that strategy; raises what was wrong."""
        if fault.name not in self._made:
            wanted = self._strategies.get(fault.name) or fault.strategies
            self._made[fault.name] = self._try(fault, wanted)
        found = self._made[fault.name][strategy]
        if isinstance(found, Exception):
            raise found
        return found

    def _try(self, fault: Fault, strategies: Sequence[str]) -> dict[str, Cost | Exception]:
        for steps in STUB_STEPS[:-1]:
            with suppress(_EndedFirst):
                return self._try_once(fault, strategies, steps)
            note(f"{fault.name}: a training ended before the test hit it, and the next one has more steps")
        return self._try_once(fault, strategies, STUB_STEPS[-1])

    def _try_once(self, fault: Fault, strategies: Sequence[str], steps: int) -> dict[str, Cost | Exception]:
        real = self._real or not fault.in_make_test
        undisturbed = strategies if real and fault is not NOTHING else ()
        expected = {strategy: self.of(NOTHING, strategy).accuracy for strategy in undisturbed}
        results: dict[str, Cost | Exception] = {}
        namespace = Namespace(f"dtj-test-{uuid.uuid4().hex[:8]}")
        hits: Mapping[str, Hit] = {}
        try:
            namespace.make()
            with ExitStack() as stack:
                trainings = []
                # Horovod's last: its ranks take all of a processor while they wait for one that is held.
                for strategy in reversed(strategies):
                    trainings.append(training := _start(fault, strategy, namespace, steps, real=real))
                    training.wait_until_it_saves()
                for training in trainings:
                    training.go_on()
                chance = random.Random(f"{SEED} {fault.name}").random()
                if real:
                    # A wait in seconds would outlast the training on a fast machine.
                    far = partial(_is_at, trainings, chance * LATEST_STEP)
                    until("a training to be as far as the seed says", far, SECONDS)
                else:
                    time.sleep(chance * LONGEST_WAIT)
                try:
                    before = {training.strategy: Moment.of(training) for training in trainings}
                    hits = fault.strike(trainings, stack)
                except KubectlError as error:
                    if not real and any(map(_has_ended, trainings)):
                        raise _EndedFirst from error
                    raise
                for training in trainings:
                    name = training.strategy
                    try:
                        status = training.job.wait(SECONDS)
                        if not real:
                            complete = training.job.artifacts().stub_steps_are_complete(steps)
                            assert complete, training.job.story()
                        results[name] = judge(
                            training.job, name, hits[name], before[name], status, expected.get(name)
                        )
                    except Exception as error:  # noqa: BLE001 the other strategy is judged as well
                        results[name] = error
        except _EndedFirst as error:
            if steps != STUB_STEPS[-1]:
                raise
            results = dict.fromkeys(strategies, error)
        except Exception as error:  # noqa: BLE001 told by the test of each strategy that was not judged
            results = dict.fromkeys(strategies, error) | results
        finally:
            self._ended.append(namespace)
            with suppress(KubectlError):
                namespace.kubectl("delete", "dtj", "--all", "--wait=false")
        self.rows += (rows := [_row(fault, s, hits.get(s), results[s]) for s in strategies])
        print(f"\n{table(rows)}")
        return results


class _EndedFirst(Exception):
    """A training ended before the test could hit all of them: the machine is busy."""


def _is_at(trainings: Sequence[Training], step: float) -> bool:
    return any(training.step() >= step for training in trainings)


def _has_ended(training: Training) -> bool:
    return any(pod["status"].get("phase") == "Succeeded" for pod in training.job.pods())


def _start(fault: Fault, strategy: str, namespace: Namespace, steps: int, *, real: bool) -> Training:
    short = re.sub(r"[^a-z0-9]+", "-", fault.name.lower())
    job = manifest(f"{short}-{strategy[0].lower()}", strategy, steps, real=real)
    fault.prepare(job)
    # The rows of restarts in place ask for these. All others show what new pods cost.
    job["spec"].setdefault("runPolicy", {}).setdefault("restartStrategy", "Recreate")
    chance = random.Random(f"{SEED} {fault.name} {strategy}")
    return Training(strategy, namespace.apply(job), chance)


def _row(fault: Fault, strategy: str, hit: Hit | None, result: Cost | Exception) -> Row:
    what = hit.what if hit else ""
    if isinstance(result, Exception):
        first = next(iter(str(result).splitlines()), type(result).__name__)
        return Row(fault.name, strategy, what, f"WRONG: {first[:120]}", None)
    return Row(fault.name, strategy, what, "Succeeded", result)
