"""`python -m tests.bench.cluster_toll`: a training by dtj on the test cluster, against the same training by mpirun.

In a plain pod and on the bare machine: to see what of its cost is dtj's, and what the container's.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from collections.abc import Callable

import yaml

from dtj.plan.pods import pod_security, with_restricted_security
from dtj_trainer import contract
from tests import fashion_mnist
from tests.bench import toll
from tests.bench.examples_rate import examples_per_second
from tests.bench.figures import table
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts
from tests.bench.training import in_turn, ratio
from tests.cluster import demo
from tests.cluster.jobs import Manifest, Namespace, example, until
from tests.cluster.progress import ClusterError

BY_DTJ, IN_A_POD, BY_HAND = "by dtj", "mpirun in a plain pod", "mpirun on the machine"
FIGURES = {"cluster-horovod-by-dtj/plain-pod": IN_A_POD, "cluster-horovod-by-dtj/by-hand": BY_HAND}
TARGETS = tuple(Target(name, name, 0.99, at_least=True, of_a_ratio=True) for name in FIGURES)
# With the tests and the checkpoints between its epochs, which dtj uploads meanwhile.
ARGUMENTS = ["--model=cnn", "--epochs=3", "--batch-size=64", "--log-seconds=0.5"]
# As a training has one: a pod without any gets no more of a processor than everybody else leaves.
RESOURCES = {"requests": {"cpu": "1500m"}}
# The transport that dtj chooses.
OPTIONS = ("--mca", "pml", "ob1")
_LOOKS_SECONDS = 2.0
_ENDED = ("Succeeded", "Failed")
_NAME = "toll"


def by_dtj(namespace: Namespace) -> float:
    """Examples a second of two ranks in one worker, who talk by shared memory as on the bare machine."""
    replicas = {"worker": {"replicas": 1, "resources": RESOURCES}}
    made = example(_NAME, args=ARGUMENTS, replicaSpecs=replicas, horovod={"slotsPerWorker": 2})
    job = namespace.apply(made)
    _until_success(lambda: job.status.get("phase"), job.story)
    rows = job.artifacts().metrics()
    _delete(namespace, "dtj")
    return examples_per_second(rows, toll.WARM_SECONDS)


def in_a_pod(namespace: Namespace) -> float:
    """The same in a pod like a worker's, with nothing of dtj but the program."""
    namespace.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(plain_pod()))

    def phase() -> str | None:
        (pod,) = namespace.list("pods")
        return str(pod["status"].get("phase"))

    _until_success(phase, lambda: namespace.kubectl("logs", _NAME))
    lines = namespace.kubectl("logs", _NAME).splitlines()
    _delete(namespace, "pod")
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return examples_per_second(rows, toll.WARM_SECONDS)


def plain_pod() -> Manifest:
    """It trains, and prints its metrics at the end."""
    spec = example(_NAME)["spec"]
    program = [*spec["command"], f"--data={spec['data']['uri']}", *ARGUMENTS]
    train = shlex.join([*toll.mpirun(2), *OPTIONS, *program])
    root = str(contract.ROOT)
    container = {
        "name": "trainer",
        "image": spec["image"],
        "command": ["/bin/sh", "-c", f"{train} && cat {root}/metrics.jsonl"],
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "AWS_ENDPOINT_URL_S3", "value": os.environ["DTJ_TEST_S3_ENDPOINT"]},
        ],
        "envFrom": [{"secretRef": {"name": spec["artifacts"]["secretName"]}}],
        "resources": RESOURCES,
        "volumeMounts": [{"name": "root", "mountPath": root}],
    }
    return with_restricted_security(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _NAME},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": pod_security(),
                "containers": [container],
                "volumes": [{"name": "root", "emptyDir": {}}],
            },
        }
    )


def _until_success(phase: Callable[[], str | None], story: Callable[[], str]) -> None:
    def ended() -> str | None:
        found = phase()
        return found if found in _ENDED else None

    if until("the training", ended, toll.LONGEST_SECONDS, _LOOKS_SECONDS) == "Failed":
        raise ClusterError(story())


def _delete(namespace: Namespace, kind: str) -> None:
    namespace.kubectl("delete", kind, _NAME)
    until("its pods to be gone", lambda: not namespace.list("pods"), toll.LONGEST_SECONDS)


def main() -> int:
    """Measure and print; 1 with the reason where it can't."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each (default: %(default)s)")
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    given = parser.parse_args()
    demo.bring_up(given.cluster)
    on, namespace = machine(), Namespace("dtj-bench")
    namespace.make()
    try:
        data, job = fashion_mnist.folder(), toll.horovod_job(ARGUMENTS)
        rates = in_turn(
            given.rounds,
            {
                BY_DTJ: lambda: by_dtj(namespace),
                IN_A_POD: lambda: in_a_pod(namespace),
                # The cluster is up, and idle.
                BY_HAND: lambda: toll.horovod_by_hand(job, data, OPTIONS, toll.AS_ROOT),
            },
        )
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        namespace.delete()
    rows = {
        "median": {name: statistics.median(of) for name, of in rates.items()},
        "least": {name: min(of) for name, of in rates.items()},
        "most": {name: max(of) for name, of in rates.items()},
    }
    figures = {name: ratio(rates[BY_DTJ], rates[other]) for name, other in FIGURES.items()}
    print(f"{on}\n\nExamples a second:\n\n{table(rows)}\n")
    print("\n".join(verdicts(TARGETS, figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
