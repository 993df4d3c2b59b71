"""The cause of a failed attempt.

* the cause among several failures
* termination messages, log lines and the kubelet's reasons
* nodes that are lost, and GPUs that are missing
* wrong termination messages
* sidecars
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.job import Manifest
from dtj.api.status import Failure
from dtj.status.failure import LOG_LINES, attempt_loss, describe, read_termination, reported
from dtj.status.pods import Exit
from tests.unit.support.pods import LAUNCHER, WORKER_0, WORKER_1, ended, evicted, running, views

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["class", "message", "role", "index", "rank", "host", "exitCode", "signal", "lastLogLines", "progress"]


def loss(*pods: Manifest, missing: tuple[str, ...] = ()) -> Any:
    return attempt_loss(2, views(*pods), missing, peers=[LAUNCHER])


def test_pods_that_run_are_no_loss() -> None:
    assert loss(running(WORKER_0), running(WORKER_1), running(LAUNCHER)) is None


def test_the_launchers_message_is_put_down_to_the_pod_and_node_where_the_rank_ran() -> None:
    said = {
        "class": "OOMKilled",
        "message": "rank 1 on mnist-worker-1 ran out of memory",
        "rank": 1,
        "host": "mnist-worker-1.mnist.ml.svc",
        "exitCode": 137,
        "signal": 9,
        "lastLogLines": ["one", "two"],
    }

    found = loss(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 137, said))

    assert found.failure.model_dump(by_alias=True, exclude_none=True) == {
        "attempt": 2,
        "role": "worker",
        "index": 1,
        "rank": 1,
        "pod": WORKER_1,
        "node": f"node-of-{WORKER_1}",
        "exitCode": 137,
        "signal": 9,
        "class": "OOMKilled",
        "message": "rank 1 on mnist-worker-1 ran out of memory",
        "lastLogLines": ["one", "two"],
    }
    assert not found.infrastructure
    assert not found.settle


def test_a_host_that_is_no_pod_of_the_job_leaves_the_failure_with_the_launcher() -> None:
    found = loss(ended(LAUNCHER, 3, {"class": "ApplicationError", "message": "x", "host": "elsewhere"}))

    assert (found.failure.role, found.failure.pod) == ("launcher", LAUNCHER)


def test_without_a_message_the_end_of_the_log_is_shown() -> None:
    lines = [f"line {n}" for n in range(30)]

    found = loss(ended(WORKER_0, 1, "\n".join(lines)))

    assert found.failure.last_log_lines == lines[-LOG_LINES:]
    assert found.failure.message == "worker 0 ended with exit code 1"
    assert found.failure.failure_class == "ApplicationError"


def test_a_last_log_line_that_happens_to_be_json_is_no_message_of_ours() -> None:
    found = loss(ended(WORKER_0, 1, '{"loss": 0.3}'))

    assert found.failure.message == "worker 0 ended with exit code 1"
    assert found.failure.last_log_lines == ['{"loss": 0.3}']


@pytest.mark.parametrize(
    "message",
    [
        "first\n\nlast\n",
        json.dumps({"class": "ApplicationError", "message": "x", "lastLogLines": ["first", "", "last"]}),
    ],
)
def test_empty_lines_are_left_out_which_an_api_server_takes_for_null(message: str) -> None:
    found = loss(ended(WORKER_1, 3, message))

    assert found is not None
    assert found.failure.last_log_lines == ["first", "last"]


@pytest.mark.parametrize(
    ("code", "reason", "kind", "signal", "message"),
    [
        (
            137,
            "OOMKilled",
            "OOMKilled",
            9,
            "worker 0 ran out of memory: raise the memory limit of the container",
        ),
        (137, "Error", "Signal", 9, "worker 0 was ended by signal 9"),
        (139, "Error", "Signal", 11, "worker 0 was ended by signal 11"),
        (1, "Error", "ApplicationError", None, "worker 0 ended with exit code 1"),
        (128, "StartError", "CommandNotFound", None, "worker 0 could not start its command (exit code 128)"),
        (127, "Error", "CommandNotFound", None, "worker 0 could not start its command (exit code 127)"),
    ],
)
def test_what_the_kubelet_knows_is_enough_for_a_sentence(
    code: int, reason: str, kind: str, signal: int | None, message: str
) -> None:
    failure = loss(ended(WORKER_0, code, reason=reason)).failure

    assert (failure.failure_class, failure.signal, failure.exit_code) == (kind, signal, code)
    assert failure.message.startswith(message)


@pytest.mark.parametrize(("code", "reason"), [(255, "Unknown"), (137, "ContainerStatusUnknown")])
def test_a_container_whose_end_nobody_saw_is_lost_with_its_node(code: int, reason: str) -> None:
    found = loss(running(WORKER_0), ended(WORKER_1, code, reason=reason), ended(LAUNCHER, 1))

    assert (found.failure.failure_class, found.infrastructure) == ("PodLost", True)
    assert found.failure.message == (
        "worker 1 was lost: node node-of-mnist-worker-1 or its container runtime restarted"
    )
    assert found.nodes == {"node-of-mnist-worker-1"}


def test_what_a_program_said_before_its_node_restarted_counts() -> None:
    said = {"class": "DataNotFound", "message": "no data"}

    assert loss(ended(WORKER_1, 255, said, reason="Unknown")).failure.failure_class == "DataNotFound"


def test_what_the_cluster_took_away_comes_before_what_failed_for_it() -> None:
    launcher = ended(LAUNCHER, 1, {"class": "ApplicationError", "message": "broken pipe"})

    assert loss(launcher, evicted(WORKER_1)).failure.failure_class == "Evicted"
    assert loss(launcher, missing=(WORKER_1,)).failure.message == (
        "pod mnist-worker-1 no longer exists: the pod or its node was deleted"
    )


def test_a_certain_cause_comes_before_one_that_may_have_followed() -> None:
    launcher = ended(LAUNCHER, 255, {"class": "ConnectionLost", "message": "x"}, seconds=1)
    worker = ended(WORKER_1, 137, reason="OOMKilled", seconds=2)

    assert loss(launcher, worker).failure.pod == WORKER_1


def test_a_worker_without_its_gpu_is_the_cause_and_speaks_against_its_node() -> None:
    without = {"class": "NoAccelerator", "message": "1 of nvidia.com/gpu was asked for, …", "exitCode": 69}
    lost = {"class": "PeersUnreachable", "message": "worker 0 does not answer", "exitCode": 69}

    found = loss(ended(WORKER_0, 69, without), running(WORKER_1), ended(LAUNCHER, 69, lost))

    assert (found.failure.failure_class, found.failure.pod) == ("NoAccelerator", WORKER_0)
    assert not found.infrastructure, "it counts against backoffLimit: another attempt may do no better"
    assert not found.settle
    assert found.nodes == {f"node-of-{WORKER_0}"}


def test_of_two_causes_the_first_counts() -> None:
    early = ended(WORKER_1, 3, {"class": "ApplicationError", "message": "early"}, seconds=1)
    late = ended(WORKER_0, 3, {"class": "ApplicationError", "message": "late"}, seconds=2)

    assert loss(late, early).failure.message == "early"


@pytest.mark.parametrize("kind", ["ConnectionLost", "PeersUnreachable", "Signal"])
def test_a_cause_that_may_have_followed_is_uncertain(kind: str) -> None:
    assert loss(ended(LAUNCHER, 255, {"class": kind, "message": "x"})).settle >= 5


def test_a_pod_that_a_later_attempt_has_superseded_is_no_fault_of_the_program() -> None:
    found = loss(ended(WORKER_0, 69, {"class": "Superseded", "message": "attempt 3 has taken over"}))

    assert (found.failure.failure_class, found.infrastructure) == ("Superseded", True)


def test_a_launcher_without_dtj_is_uncertain_and_a_worker_is_not() -> None:
    assert loss(ended(LAUNCHER, 1)).settle == 5
    assert not loss(ended(WORKER_0, 1)).settle


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_no_termination_message_does_harm(said: Manifest) -> None:
    message = json.dumps(said)

    found = loss(ended(LAUNCHER, 3, message), running(WORKER_0))

    assert found is not None
    text = json.dumps(found.failure.model_dump(by_alias=True, mode="json", exclude_none=True))
    assert type(found.failure).model_validate_json(text) == found.failure
    end = Exit(code=0, signal=None, reason="", message=message, finished=None)
    progress, _ = reported(read_termination(end))
    json.dumps(progress and progress.model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize("message", ["", "text", "[1]", "5", "null", "[" * 5000])
def test_texts_that_are_no_message(message: str) -> None:
    assert read_termination(Exit(1, None, "", message, None)) is None


def test_a_failure_told_in_a_sentence_has_the_place_and_the_last_line() -> None:
    failure = Failure(
        pod="mnist-worker-1", rank=3, failure_class="ApplicationError",
        message="the program exited with code 2", last_log_lines=["Traceback", "KeyError: 'label'"],
    )  # fmt: skip
    assert describe(failure) == (
        "rank 3 in mnist-worker-1: the program exited with code 2; its last line: KeyError: 'label'"
    )
    assert describe(Failure(pod="a-worker-0", message="pod a-worker-0 is gone")) == "pod a-worker-0 is gone"


@pytest.mark.parametrize(
    ("message", "infrastructure"),
    [
        ("The node was low on resource: memory.", True),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", False),
        ('Usage of EmptyDir volume "dtj-workspace" exceeds the limit "1Gi".', False),
    ],
)
def test_an_eviction_that_the_program_brought_on_is_its_own_fault(message: str, infrastructure: bool) -> None:
    assert loss(evicted(WORKER_0, message)).infrastructure is infrastructure


def test_a_native_sidecar_that_crashes_and_comes_back_is_no_failure() -> None:
    made = running(WORKER_0)
    made["status"]["initContainerStatuses"] = [{"name": "istio", "state": {"terminated": {"exitCode": 1}}}]

    assert loss(made, running(WORKER_1)) is None


@pytest.mark.parametrize(
    "message", ["", {"class": "Signal", "message": "told to stop (SIGTERM)", "exitCode": 143}]
)
def test_a_pod_that_exceeds_its_own_deadline_says_so(message: Any) -> None:
    pod = ended(WORKER_0, 143, message)
    why = "Pod was active on the node longer than the specified deadline"
    pod["status"] |= {"reason": "DeadlineExceeded", "message": why}
    loss = attempt_loss(1, views(pod), ())
    assert loss is not None
    assert (loss.infrastructure, loss.failure.failure_class, loss.failure.signal) == (False, "Signal", 15)
    assert loss.failure.message == f"worker 0 was ended by the kubelet: DeadlineExceeded: {why}"
