"""The life of a ParameterServer job: restarts after each kind of loss, their count, and the end.

* which replica restarts after which loss
* losses that follow from another loss
* the evaluator, during the training and at the end
* bottlenecks
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj.api.job import Fault, Manifest
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.events import happenings
from dtj.status.failure_policy import FOLLOWS_SECONDS
from dtj.status.observed import read_report
from dtj.status.times import written_time
from tests.unit.support.pods import Life, at, condition, deleting, ended, evicted, running, unschedulable

CHIEF, PS, WORKER_0, WORKER_1, EVALUATOR = (
    f"mnist-{replica}" for replica in ("chief-0", "ps-0", "worker-0", "worker-1", "evaluator-0")
)
NEEDED = (CHIEF, PS, WORKER_0, WORKER_1)
ALL = (*NEEDED, EVALUATOR)
SPEC: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {}, "evaluator": {}},
    "artifacts": {"uri": "s3://bucket/jobs"},
}
KILLED = {"class": "Signal", "message": "the program was killed by SIGKILL", "exitCode": 137, "signal": 9}
CUT_OFF = {"class": "ConnectionLost", "message": "parameter server 0 does not answer", "exitCode": 1}


def pods(
    attempts: dict[str, int] | None = None, *, without: str = "", names: tuple[str, ...] = ALL
) -> list[Manifest]:
    return [running(name, attempt=(attempts or {}).get(name, 1)) for name in names if name != without]


def ran(**spec: Any) -> Life:
    life = Life(**SPEC | spec)
    assert life.see(*pods())["phase"] == "Running"
    return life


def lost(life: Life, *gone: Manifest, seconds: float = 100) -> Manifest:
    """The status once these pods have ended and the others run."""
    names = [pod["metadata"]["name"] for pod in gone]
    return life.see(*gone, *(pod for pod in pods() if pod["metadata"]["name"] not in names), seconds=seconds)


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "again", "words"),
    [
        (WORKER_1, {"worker-1"}, "mnist-worker-1 starts again, the others continue"),
        (CHIEF, {"ps-0", "chief-0"}, "mnist-chief-0, mnist-ps-0 start again, the others continue"),
        (PS, {"ps-0", "chief-0"}, "mnist-chief-0, mnist-ps-0 start again, the others continue"),
    ],
)
def test_only_what_has_to_starts_again(name: str, again: set[str], words: str) -> None:
    life = ran()

    status = lost(life, ended(name, 137, KILLED))

    assert status["replicaAttempts"] == dict.fromkeys(sorted(again), 2)
    assert status["attempt"] == 2
    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    assert status["failure"]["pod"] == name
    message = condition(status, "Restarting")["message"]
    assert message == f"attempt 1: {name}: the program was killed by SIGKILL; {words}"


def test_the_training_does_not_notice_the_loss_of_the_evaluator() -> None:
    life = ran()
    before = life.job.status

    status = lost(life, ended(EVALUATOR, 137, KILLED))

    assert (status["phase"], condition(status, "Running")["status"]) == ("Running", "True")
    assert status["restarts"] == {"application": 0, "infrastructure": 0, "evaluator": 1}
    assert status["replicaAttempts"] == {"evaluator-0": 2}
    assert condition(status, "Restarting") == {}
    assert [(h.reason, h.message) for h in happenings(before, life.job.status)] == [
        (
            "EvaluatorRestarting",
            "attempt 1: mnist-evaluator-0: the program was killed by SIGKILL; "
            "the evaluator restarts, the training continues",
        )
    ]
    assert life.see(*pods(names=NEEDED), seconds=110)["attempt"] == 2
    status = life.see(*pods({EVALUATOR: 2}), seconds=120)
    assert (status["phase"], status["attempt"]) == ("Running", 2)


def test_an_evaluator_that_fails_again_and_again_fails_no_training() -> None:
    life = ran(runPolicy={"backoffLimit": 2})
    for attempt in (1, 2, 3):
        crashed = ended(EVALUATOR, 1, {"class": "ApplicationError", "message": "no"}, attempt=attempt)
        status = life.see(*pods(names=NEEDED), crashed, seconds=100 * attempt)
        life.see(*pods(names=NEEDED), crashed, seconds=100 * attempt + 50)

    assert status["phase"] == "Running"
    assert status["restarts"] == {"application": 0, "infrastructure": 0, "evaluator": 2}
    assert condition(status, "Running")["message"] == "all 4 pods run but mnist-evaluator-0"


def test_a_worker_that_was_lost_is_not_lost_again_while_it_is_made() -> None:
    life = ran()
    lost(life, ended(WORKER_0, 137, KILLED))

    for seen in (pods(without=WORKER_0), pods(without=WORKER_0)):
        assert life.see(*seen, seconds=110)["attempt"] == 2
    status = life.see(*pods({WORKER_0: 2}), seconds=120)

    assert (status["phase"], status["attempt"]) == ("Running", 2)
    assert condition(status, "Restarting")["status"] == "False"
    assert status["restarts"] == {"application": 1, "infrastructure": 0}


def test_what_went_without_a_trace_is_an_infrastructure_loss() -> None:
    life = ran()

    status = life.see(*pods(without=WORKER_0), seconds=10)

    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["replicaAttempts"] == {"worker-0": 2}
    assert status["failure"]["class"] == "PodLost"


def test_a_worker_that_is_not_wanted_any_more_is_no_loss_of_one_that_starts_again() -> None:
    life = ran()
    lost(life, ended(WORKER_0, 137, KILLED))
    life.spec["replicaSpecs"] = {"worker": {"replicas": 1}, "ps": {}, "evaluator": {}}
    life.see(*pods(without=WORKER_0), seconds=110)

    for seen in (pods(without=WORKER_0), pods(names=(CHIEF, PS, EVALUATOR))):
        assert life.see(*seen, seconds=120)["attempt"] == 2
    status = life.see(*pods({WORKER_0: 2}, without=WORKER_1), seconds=130)

    assert status["phase"] == "Running"
    assert status["restarts"] == {"application": 1, "infrastructure": 0}


def test_two_losses_that_overlap_are_told_apart() -> None:
    life = ran()
    lost(life, ended(WORKER_0, 137, KILLED))

    status = life.see(*pods(without=WORKER_0, names=(CHIEF, PS, WORKER_0, EVALUATOR)), seconds=110)

    assert status["restarts"] == {"application": 1, "infrastructure": 1}
    assert status["replicaAttempts"] == {"worker-0": 3, "worker-1": 3}


@pytest.mark.parametrize("of_a_pod", [deleting(running(PS)), evicted(PS)])
def test_a_ps_that_the_cluster_took_counts_as_infrastructure(of_a_pod: Manifest) -> None:
    life = ran()

    status = lost(life, of_a_pod, ended(CHIEF, 1, CUT_OFF))

    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["failure"]["pod"] == PS
    assert status["replicaAttempts"] == {"chief-0": 2, "ps-0": 2}


def test_a_chief_cut_off_waits_for_the_true_cause() -> None:
    life = ran()

    status = lost(life, ended(CHIEF, 1, CUT_OFF, seconds=100), seconds=101)
    assert status["attempt"] == 1
    status = lost(
        life, ended(CHIEF, 1, CUT_OFF, seconds=100), ended(PS, 137, KILLED, seconds=99), seconds=105
    )

    assert status["failure"]["pod"] == PS
    assert status["restarts"] == {"application": 1, "infrastructure": 0}


def test_a_worker_that_came_to_its_end_is_no_loss_but_starts_again_with_the_chief() -> None:
    life = ran()

    assert lost(life, ended(WORKER_0))["phase"] == "Running"
    status = lost(life, ended(WORKER_0), ended(CHIEF, 1, {"class": "ApplicationError", "message": "x"}))

    assert status["replicaAttempts"] == {"chief-0": 2, "ps-0": 2, "worker-0": 2}


def chief_failed() -> Life:
    """The chief has failed, and starts again with the ps."""
    life = ran()
    lost(life, ended(CHIEF, 1, {"class": "ApplicationError", "message": "x"}), seconds=100)
    assert life.job.status.replica_attempts == {"chief-0": 2, "ps-0": 2}
    return life


def test_workers_that_the_end_of_the_chief_ended_start_again_with_the_next_one() -> None:
    life = chief_failed()

    status = life.see(
        *(ended(name, seconds=101) for name in (WORKER_0, WORKER_1)), running(EVALUATOR), seconds=103
    )

    assert status["phase"] == "Restarting"
    # The next chief and ps are not there yet.
    assert status["replicaAttempts"] == {"chief-0": 3, "ps-0": 3, "worker-0": 3, "worker-1": 3}
    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    assert status["failure"]["pod"] == CHIEF
    assert condition(status, "Restarting")["message"] == (
        "attempt 2: mnist-worker-0: worker 0 ended with exit code 0 while the other pods still needed it; "
        "mnist-chief-0 has restarted since, and that restart is counted, so that this loss does not count; "
        "mnist-chief-0, mnist-ps-0, mnist-worker-0, mnist-worker-1 start again, the others continue"
    )
    again = {CHIEF: 3, PS: 3, WORKER_0: 3, WORKER_1: 3}
    # Once for each restart of the chief, however fast a worker ends.
    status = life.see(ended(WORKER_0, attempt=3, seconds=105), *pods(again, without=WORKER_0), seconds=110)
    assert (status["phase"], status["attempt"]) == ("Running", 3)


@pytest.mark.parametrize(("finished", "attempt"), [(101, 3), (125, 2)])
def test_of_workers_whose_end_is_seen_late_only_those_start_again_that_the_chief_ended(
    finished: float, attempt: int
) -> None:
    life = chief_failed()
    others = pods({PS: 2}, names=(PS, WORKER_0, EVALUATOR))
    chief = running(CHIEF, attempt=2)
    chief["status"]["conditions"][0]["lastTransitionTime"] = written_time(at(108))
    assert life.see(chief, running(WORKER_1), *others, seconds=110)["phase"] == "Running"

    status = life.see(chief, ended(WORKER_1, seconds=finished), *others, seconds=130)

    worker = {"worker-1": 3} if attempt == 3 else {}
    assert status["replicaAttempts"] == {"chief-0": 2, "ps-0": 2} | worker


def test_program_failures_count_against_the_limit_whichever_replica() -> None:
    life = ran(runPolicy={"backoffLimit": 1})
    lost(life, ended(WORKER_0, 137, KILLED))
    life.see(*pods({WORKER_0: 2}), seconds=110)

    status = life.see(
        ended(CHIEF, 3, {"class": "ApplicationError", "message": "x"}),
        *pods({WORKER_0: 2}, without=CHIEF),
        seconds=200,
    )

    assert status["phase"] == "Failed"
    assert condition(status, "Failed")["reason"] == "BackoffLimitExceeded"


def test_before_all_ran_a_deleted_pod_is_simply_made_again() -> None:
    life = Life(**SPEC)
    life.see(*pods(names=(CHIEF, PS)))

    status = life.see(deleting(running(PS)), running(CHIEF))
    assert (status["attempt"], status["restarts"]) == (1, {"application": 0, "infrastructure": 0})
    assert life.see(running(CHIEF))["attempt"] == 1


def test_a_silent_ps_starts_again_with_the_chief_that_lost_it() -> None:
    status = lost(ran(), ended(CHIEF, 1, CUT_OFF), running(PS, ready=False))

    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert (status["failure"]["pod"], status["failure"]["node"]) == (PS, f"node-of-{PS}")
    assert status["replicaAttempts"] == {"chief-0": 2, "ps-0": 2}


def test_a_chief_that_waited_in_vain_for_a_server_is_no_failure_of_the_program() -> None:
    waited = {"class": "PeersUnreachable", "message": "no answer from worker 0", "exitCode": 69}
    status = lost(ran(), ended(CHIEF, 69, waited), running(WORKER_0, ready=False))

    assert status["restarts"] == {"application": 0, "infrastructure": 1}


STALLED = CUT_OFF | {"message": "no step has ended for 120 s, though parameter servers and workers answer"}


def lost_worker_with_its_node() -> Life:
    """A job whose worker 0 was lost with its node, at 100 s, and is back since 130 s."""
    life = ran()
    lost(life, deleting(running(WORKER_0)))
    status = life.see(*pods({WORKER_0: 2}), seconds=130)
    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    return life


def stalled(life: Life, seconds: float, attempts: dict[str, int] | None = None) -> Manifest:
    """The status once the chief has ended at that time for a lost connection, and that is believed."""
    attempts = attempts or {WORKER_0: 2}
    end = ended(CHIEF, 69, STALLED, seconds=seconds, attempt=attempts.get(CHIEF, 1))
    seen = (end, *pods(attempts, without=CHIEF))
    assert life.see(*seen, seconds=seconds + 1)["phase"] == "Running", "another cause may show"
    return life.see(*seen, seconds=seconds + 61)


@pytest.mark.parametrize("failure", [None, KILLED], ids=["with its node", "killed"])
def test_a_chief_that_hung_on_a_lost_worker_starts_again_and_is_no_second_loss(
    failure: Manifest | None,
) -> None:
    life = ran()
    before = lost(life, ended(WORKER_0, 137, failure) if failure else deleting(running(WORKER_0)))
    life.see(*pods({WORKER_0: 2}), seconds=130)

    end = ended(CHIEF, 69, STALLED, seconds=260)
    status = life.see(end, *pods({WORKER_0: 2}, without=CHIEF), seconds=266)

    assert status["restarts"] == before["restarts"]
    assert sum(status["restarts"].values()) == 1
    assert status["replicaAttempts"] == {"chief-0": 3, "ps-0": 3, "worker-0": 2}
    assert status["failure"] == before["failure"]
    assert status.get("nodeFailures") == before.get("nodeFailures")
    restarting = condition(status, "Restarting")
    assert restarting["reason"] == "ConnectionLost"
    assert (
        "the replica to which it lost its connection has restarted since, and that restart is counted"
        in restarting["message"]
    )


def test_a_chief_that_loses_connections_once_more_is_a_loss() -> None:
    life = lost_worker_with_its_node()
    end = ended(CHIEF, 69, STALLED, seconds=200)
    life.see(end, *pods({WORKER_0: 2}, without=CHIEF), seconds=210)
    again = {CHIEF: 3, PS: 3, WORKER_0: 2}
    assert life.see(*pods(again), seconds=220)["restarts"] == {"application": 0, "infrastructure": 1}

    status = stalled(life, 250, again)

    assert status["restarts"] == {"application": 1, "infrastructure": 1}


def test_a_chief_that_loses_connections_long_after_another_loss_is_one_itself() -> None:
    status = stalled(lost_worker_with_its_node(), 130 + FOLLOWS_SECONDS)

    assert status["restarts"] == {"application": 1, "infrastructure": 1}


@pytest.mark.parametrize("cause", ["ApplicationError", "Signal", "OOMKilled"])
def test_a_chief_that_fails_otherwise_after_a_loss_is_a_loss(cause: str) -> None:
    life = lost_worker_with_its_node()
    end = ended(CHIEF, 1, {"class": cause, "message": "no", "exitCode": 1}, seconds=200)

    status = life.see(end, *pods({WORKER_0: 2}, without=CHIEF), seconds=261)

    assert status["restarts"] == {"application": 1, "infrastructure": 1}


def test_the_loss_of_the_evaluator_excuses_no_chief() -> None:
    life = ran()
    lost(life, ended(EVALUATOR, 137, KILLED))
    attempts = {EVALUATOR: 2}
    life.see(*pods(attempts), seconds=130)

    assert stalled(life, 200, attempts)["restarts"]["application"] == 1


def test_another_node_that_falls_silent_meanwhile_is_a_loss_of_its_own() -> None:
    life = lost_worker_with_its_node()
    end = ended(CHIEF, 69, CUT_OFF, seconds=200)

    status = life.see(end, running(PS, ready=False), running(WORKER_0, attempt=2), seconds=201)

    assert status["restarts"] == {"application": 0, "infrastructure": 2}


def test_a_ps_that_ended_well_while_it_was_needed_is_a_failure() -> None:
    life = ran()

    assert lost(life, ended(PS, 0, seconds=100), seconds=110)["attempt"] == 1, "the chief may end as well"
    status = lost(life, ended(PS, 0, seconds=100), seconds=161)

    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    assert status["replicaAttempts"] == {"chief-0": 2, "ps-0": 2}


def test_a_pod_that_does_not_end_holds_back_only_its_own_successor() -> None:
    life = ran()
    lost(life, deleting(running(WORKER_0)))

    life.see(deleting(running(WORKER_0)), *pods(without=WORKER_0), seconds=110)

    assert life.decision is not None
    assert life.decision.prepare


def test_pods_that_the_cluster_takes_again_and_again_cost_no_pause() -> None:
    life = ran()
    for attempt in range(1, 6):
        seen = pods({WORKER_0: attempt}, without=WORKER_0)
        life.see(*seen, deleting(running(WORKER_0, attempt=attempt)), seconds=100 * attempt)
    life.see(*pods(without=WORKER_0), seconds=501)

    assert life.job.status.restarts.infrastructure == 5
    assert life.decision is not None
    assert life.decision.prepare


def test_a_replica_that_can_not_be_made_leaves_the_others_at_work() -> None:
    life = ran()
    lost(life, ended(WORKER_0, 137, KILLED))

    status = life.see(
        *pods(without=WORKER_0), seconds=110, invalid=[Fault("Pod mnist-worker-0", "no such field")]
    )

    assert status["phase"] == "Restarting"
    assert condition(status, "Created")["reason"] == "SpecInvalid"


def test_an_evaluator_that_a_changed_spec_leaves_out_counts_no_more() -> None:
    life = ran()
    life.spec["replicaSpecs"] = {"worker": {"replicas": 2}, "ps": {}, "evaluator": {"replicas": 0}}
    life.see(*pods())

    status = lost(life, ended(EVALUATOR, 1, {"class": "ApplicationError", "message": "no"}))

    assert status["restarts"] == {"application": 0, "infrastructure": 0}


# --- the evaluator ----------------------------------------------------------------------------------


def test_the_training_runs_without_an_evaluator_that_no_node_takes() -> None:
    status = Life(**SPEC).see(*pods(names=NEEDED), unschedulable(EVALUATOR, "no memory"))

    assert status["phase"] == "Running"
    assert condition(status, "Running")["message"] == (
        "all 4 pods run but mnist-evaluator-0: no node takes mnist-evaluator-0: no memory"
    )


def test_accuracy_is_the_evaluators() -> None:
    life = ran()

    status = life.see(
        *pods(), progress=ProgressStatus(step=50), evaluation=ProgressStatus(step=40, accuracy=0.8)
    )
    assert status["progress"] == {"step": 50, "accuracy": 0.8}
    status = life.see(*pods(), progress=ProgressStatus(step=60))
    assert status["progress"] == {"step": 60, "accuracy": 0.8}


SUCCESS = {
    "progress": {"step": 300, "totalSteps": 300},
    "artifacts": {"checkpoint": {"step": 300}},
    "exitCode": 0,
}


def test_the_job_waits_until_the_evaluator_has_seen_the_last_checkpoint() -> None:
    life = ran()
    end = ended(CHIEF, 0, SUCCESS, seconds=50)

    status = lost(life, end, seconds=60)
    assert (status["phase"], condition(status, "Running")["reason"]) == ("Running", "Evaluating")
    assert life.decision is not None
    assert life.decision.pods.end == {PS, WORKER_0, WORKER_1}, "what the chief leaves is not taken away"
    assert (life.decision.prepare, life.decision.look_again) == (False, 300)

    status = life.see(end, running(EVALUATOR), seconds=65, evaluation=ProgressStatus(step=299, accuracy=0.7))
    assert status["phase"] == "Running"
    status = life.see(end, running(EVALUATOR), seconds=70, evaluation=ProgressStatus(step=300, accuracy=0.9))
    assert (status["phase"], condition(status, "Running")["reason"]) == ("Running", "Evaluated")
    assert life.decision.pods.end == {EVALUATOR}, "the others have ended"
    status = life.see(end, ended(EVALUATOR, 143), seconds=75)

    assert status["phase"] == "Succeeded"
    assert status["progress"] == {"step": 300, "totalSteps": 300, "accuracy": 0.9}
    assert condition(status, "Succeeded")["message"] == "mnist-chief-0 ended with exit code 0"
    assert status["restarts"] == {"application": 0, "infrastructure": 0}


def test_a_last_checkpoint_without_a_step_is_measured_too() -> None:
    """Nothing says when the evaluator has seen it: it ends by itself, or after its time."""
    checkpoint = {"uri": "s3://bucket/jobs/ml/x/checkpoints/7", "new": ["best.pt", "last.pt"]}
    end = ended(CHIEF, 0, {"artifacts": {"checkpoint": checkpoint}, "exitCode": 0}, seconds=50)
    life = ran()

    status = lost(life, end, seconds=60)
    assert (status["phase"], condition(status, "Running")["reason"]) == ("Running", "Evaluating")
    assert "mnist-evaluator-0 has 300 s to see checkpoint 7" in condition(status, "Running")["message"]
    assert status["artifacts"]["checkpoint"] == checkpoint
    status = life.see(end, running(EVALUATOR), seconds=70, evaluation=ProgressStatus(step=300, accuracy=0.9))
    assert condition(status, "Running")["reason"] == "Evaluating"

    status = life.see(end, ended(EVALUATOR, 0), seconds=75)
    assert status["phase"] == "Succeeded"


def test_that_the_chief_left_nothing_is_still_told_when_only_the_evaluator_is_there() -> None:
    life = ran()
    nothing = {"artifacts": {"uri": "s3://bucket/jobs/ml/x"}, "exitCode": 0}
    status = lost(life, ended(CHIEF, 0, nothing, seconds=50), seconds=60)
    assert (status["phase"], status["nothingKept"]) == ("Running", True)

    status = life.see(ended(EVALUATOR, 143), seconds=75)

    assert status["phase"] == "Succeeded"
    assert condition(status, "Succeeded")["message"] == (
        "mnist-chief-0 ended with exit code 0; the program left neither a checkpoint nor a model below /dtj"
    )


def test_an_evaluator_that_ended_says_what_it_measured() -> None:
    life = ran()
    said = {"progress": {"step": 300, "accuracy": 0.91}, "exitCode": 0}

    status = lost(life, ended(CHIEF, 0, SUCCESS, seconds=50), ended(EVALUATOR, 0, said), seconds=60)

    assert status["phase"] == "Succeeded"
    assert status["progress"]["accuracy"] == 0.91


@pytest.mark.parametrize(
    ("evaluator", "seconds", "why"),
    [
        (ended(EVALUATOR, 1, {"class": "ApplicationError", "message": "no"}), 60, ": mnist-evaluator-0: no"),
    ],
)
def test_an_evaluator_does_not_keep_a_job_from_succeeding(
    evaluator: Manifest, seconds: float, why: str
) -> None:
    life = ran()

    status = lost(life, ended(CHIEF, 0, SUCCESS, seconds=50), evaluator, seconds=seconds)

    assert status["phase"] == "Succeeded"
    assert condition(status, "Succeeded")["message"] == (
        f"mnist-chief-0 ended with exit code 0; mnist-evaluator-0 has not seen checkpoint 300{why}"
    )


@pytest.mark.parametrize(("policy", "until"), [({}, 360), ({"activeDeadlineSeconds": 100}, 100)])
def test_the_evaluator_has_its_time_and_no_more_even_when_the_chiefs_pod_is_gone(
    policy: Manifest, until: float
) -> None:
    life = ran(runPolicy=policy)
    lost(life, ended(CHIEF, 0, SUCCESS, seconds=50), seconds=60)

    assert life.see(running(EVALUATOR), seconds=until - 1)["phase"] == "Running"
    status = life.see(running(EVALUATOR), seconds=until)

    assert status["phase"] == "Succeeded"
    assert "has not seen checkpoint 300" in condition(status, "Succeeded")["message"]
    assert status["restarts"] == {"application": 0, "infrastructure": 0}


@pytest.mark.parametrize("gone", [[], [deleting(running(EVALUATOR))]])
def test_an_evaluator_that_is_taken_away_at_the_end_starts_again_within_its_time(
    gone: list[Manifest],
) -> None:
    life = ran()
    life.see(*pods(), seconds=40)
    end = ended(CHIEF, 0, SUCCESS, seconds=50)

    status = life.see(end, *gone, seconds=60)
    assert (status["phase"], status["replicaAttempts"]) == ("Running", {"evaluator-0": 2})
    status = life.see(end, seconds=61)
    assert (status["phase"], condition(status, "Running")["reason"]) == ("Running", "Evaluating")
    assert life.decision is not None
    assert (life.decision.prepare, life.decision.pods.make) == (False, {EVALUATOR})
    status = life.see(end, seconds=361)

    assert status["phase"] == "Succeeded"
    assert "mnist-evaluator-0 has not seen checkpoint 300" in condition(status, "Succeeded")["message"]
    assert status["restarts"] == {"application": 0, "infrastructure": 0, "evaluator": 1}


def test_a_checkpoint_of_step_0_can_be_seen() -> None:
    life = ran()
    end = ended(CHIEF, 0, {"artifacts": {"checkpoint": {"step": 0}}, "exitCode": 0})

    status = life.see(end, running(EVALUATOR), seconds=5, evaluation=ProgressStatus(step=0, accuracy=0.1))

    assert condition(status, "Running")["reason"] == "Evaluated"


def test_without_a_checkpoint_there_is_nothing_to_wait_for() -> None:
    status = lost(ran(), ended(CHIEF, 0, {"exitCode": 0}))
    assert condition(status, "Running")["message"].endswith("; mnist-evaluator-0 ends")


# --- bottleneck -------------------------------------------------------------------------------------

SLOW = ("ParameterServersSlow", "workers wait 83 % of each step")


def test_a_bottleneck_is_a_condition_and_one_event_however_its_figures_move() -> None:
    life = ran()
    told = []
    for number, found in enumerate([SLOW, (SLOW[0], "workers wait 85 % of each step"), None, SLOW]):
        before = life.job.status
        status = life.see(*pods(), progress=ProgressStatus(step=number), bottleneck=found)
        told += [h.reason for h in happenings(before, life.job.status)]
        if found:
            assert condition(status, "Bottleneck")["message"] == found[1]
        assert condition(status, "Bottleneck")["status"] == str(found is not None)

    assert told == ["ParameterServersSlow", "ParameterServersSlow"], "once each time it comes"


@pytest.mark.parametrize(
    ("found", "read"),
    [
        ({"kind": "ParameterServers", "message": "slow"}, ("ParameterServersSlow", "slow")),
        ({"kind": "Worker", "message": "slow"}, ("StragglingWorker", "slow")),
        ({"kind": "Moon", "message": "slow"}, None),
        ({"kind": "Worker"}, None),
        ("slow", None),
    ],
)
def test_a_bottleneck_in_a_report(found: Any, read: tuple[str, str] | None) -> None:
    text = json.dumps({"progress": {"step": 3, "bottleneck": found}})

    report, _ = read_report(text)

    assert report is not None
    assert report.bottleneck == read
    assert report.progress == ProgressStatus(step=3)


def test_artifacts_of_the_chief_are_the_jobs() -> None:
    status = ran().see(*pods(), artifacts=ArtifactsStatus(model="s3://bucket/model"))

    assert status["artifacts"]["model"] == "s3://bucket/model"


# --- the forms without a chief --------------------------------------------------------------------

WORKERS_ALONE = {"replicaSpecs": {"chief": {"replicas": 0}, "worker": {"replicas": 2}}}
NO_CHIEF = {"replicaSpecs": {"chief": {"replicas": 0}, "worker": {"replicas": 2}, "ps": {}}}


def ran_without_chief(form: dict[str, Any]) -> tuple[Life, tuple[str, ...]]:
    life = Life(**SPEC | form)
    names = tuple(replica.name for replica in life.plan.shape.replicas)
    assert life.see(*map(running, names))["phase"] == "Running"
    return life, names


@pytest.mark.parametrize(
    ("form", "name", "again"),
    [
        (NO_CHIEF, WORKER_1, {"worker-1"}),
        (NO_CHIEF, WORKER_0, {"worker-0", "ps-0"}),
        (NO_CHIEF, PS, {"worker-0", "ps-0"}),
        (WORKERS_ALONE, WORKER_1, {"worker-0", "worker-1"}),
    ],
)
def test_without_a_chief_worker_0_or_all_workers_start_again(
    form: dict[str, Any], name: str, again: set[str]
) -> None:
    life, names = ran_without_chief(form)

    others = [running(other) for other in names if other != name]
    status = life.see(ended(name, 137, KILLED), *others, seconds=100)

    assert status["phase"] == "Restarting"
    assert status["replicaAttempts"] == dict.fromkeys(sorted(again), 2)


@pytest.mark.parametrize("form", [NO_CHIEF, WORKERS_ALONE])
def test_without_a_chief_the_end_of_worker_0_is_the_jobs_and_that_of_another_worker_no_loss(
    form: dict[str, Any],
) -> None:
    life, names = ran_without_chief(form)

    others = [running(name) for name in names if name not in (WORKER_0, WORKER_1)]
    for seconds in (100, 400):
        status = life.see(running(WORKER_0), ended(WORKER_1, 0), *others, seconds=seconds)
        assert status["phase"] == "Running"
    status = life.see(ended(WORKER_0, 0), ended(WORKER_1, 0), *others, seconds=401)

    assert status["phase"] == "Succeeded"
    assert condition(status, "Succeeded")["message"].startswith("mnist-worker-0 ended with exit code 0")
