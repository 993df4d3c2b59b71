"""Jobs with failing programs, memory limits and deletion in mid-run: the cause is reported, and nothing is left."""

from __future__ import annotations

import pytest

from tests.cluster.jobs import Namespace, example, stub, until

pytestmark = pytest.mark.cluster


def test_a_failed_program_goes_on_from_its_checkpoint(namespace: Namespace) -> None:
    policy = {"restartStrategy": "Recreate"}
    job = namespace.apply(
        stub("retried", "--steps=60", "--checkpoint-steps=20", "--fail-at=50", runPolicy=policy)
    )
    status = until("the second attempt", lambda: (s := job.status).get("attempt") == 2 and s, 180)
    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    failure = status["failure"]
    assert failure["class"] == "ApplicationError"
    assert failure["exitCode"] == 3
    assert failure["role"] == "worker"
    assert failure["pod"] == f"retried-worker-{failure['index']}"
    assert failure["node"]
    assert "the loss is not a number any more" in "\n".join(failure["lastLogLines"])
    assert job.wait(240)["attempt"] == 2
    # The failed attempt's pods went only when its checkpoint of step 40 was in the bucket.
    log = job.artifacts().read("logs/attempt-2/rank-0.log").decode()
    assert "resuming from the checkpoint of step 40," in log
    rows = job.artifacts().metrics()
    second = [row["step"] for row in rows if row["attempt"] == 2 and row["kind"] == "train"]
    assert min(second) > 40
    assert max(second) == 60
    assert job.artifacts().stub_steps_are_complete(60)


def test_a_program_that_always_fails_ends_the_job_with_its_reason(namespace: Namespace) -> None:
    job = namespace.apply(
        example(
            "hopeless",
            command=["python", "-c", "import sys; print('no such column: label'); sys.exit(7)"],
            args=[],
            runPolicy={"backoffLimit": 1},
        )
    )
    status = job.wait(180, "Failed")
    restarts = status["restarts"]
    assert restarts["application"] == 1
    # The program may fail before all agents have joined. The pods are new then.
    assert status["attempt"] == 2 - restarts.get("inPlace", 0)
    assert status["failure"]["exitCode"] == 7
    assert "no such column: label" in status["failure"]["lastLogLines"]
    assert job.condition("Failed")["reason"] == "BackoffLimitExceeded"
    until(
        "the workers to be gone",
        lambda: {p["metadata"]["name"] for p in job.pods()} == {"hopeless-launcher-0"},
        60,
    )


def test_a_job_deleted_mid_run_leaves_nothing(namespace: Namespace) -> None:
    job = namespace.apply(stub("dropped", "--steps=100000"))
    job.wait_for_step(5)
    namespace.kubectl("delete", "dtj", "dropped", "--wait")

    def left() -> list[str]:
        names = namespace.kubectl("get", "pods,services,configmaps,secrets", "--output=name").split()
        return [name for name in names if "dropped" in name]

    until("everything to be gone", lambda: not left(), 150)


def test_a_rank_that_takes_too_much_memory_is_told_as_such(namespace: Namespace) -> None:
    greedy = "held = []\nwhile True: held.append(bytearray(50_000_000))"
    manifest = example("greedy", command=["python", "-c", greedy], args=[], runPolicy={"backoffLimit": 0})
    manifest["spec"]["replicaSpecs"]["worker"]["resources"] = {"limits": {"memory": "400Mi"}}
    failure = namespace.apply(manifest).wait(90, "Failed")["failure"]
    assert failure["class"] == "OOMKilled"
    assert failure["pod"].startswith("greedy-worker-")
    assert failure["signal"] == 9


def test_a_disk_too_small_for_a_checkpoint_is_told_as_such(namespace: Namespace) -> None:
    manifest = stub(
        "cramped", "--checkpoint-steps=20", "--checkpoint-bytes=1000000", runPolicy={"backoffLimit": 0}
    )
    disk = {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "256Ki"}}
    mount = {"name": "small", "mountPath": "/dtj/checkpoints"}
    pod = {"volumes": [disk], "containers": [{"name": "trainer", "volumeMounts": [mount]}]}
    manifest["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": pod}
    failure = namespace.apply(manifest).wait(120, "Failed")["failure"]
    assert failure["class"] == "DiskFull"
    assert "No space left on device: '/dtj/checkpoints/20'" in failure["message"]
