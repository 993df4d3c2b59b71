"""The objects that mpi-operator creates for an MPIJob, after v0.8.0's pkg/controller/mpi_job_controller.go.

Only Open MPI is covered, with the launcher created after its workers, as the MPIJobs of this project request.
As in the original, the launcher of a suspended MPIJob is made at once, since all of no workers are ready: a suspended
Job, which is let go in the sync that makes the workers (mpi-operator#615).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtj.api.job import Manifest
from dtj.status.times import written_time
from tests.unit.support.fake_cluster import FakeCluster, controlled_by

LABEL = "training.kubeflow.org"


def _metadata(mpijob: Manifest, name: str, labels: Manifest | None = None) -> Manifest:
    owner = mpijob["metadata"]
    return {
        "name": name,
        "namespace": owner["namespace"],
        "labels": labels or {"app": owner["name"]},
        "ownerReferences": [
            {
                "apiVersion": "kubeflow.org/v2beta1",
                "kind": "MPIJob",
                "name": owner["name"],
                "uid": owner["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _labels(mpijob: Manifest, role: str | None = None) -> Manifest:
    common = {f"{LABEL}/operator-name": "mpi-operator", f"{LABEL}/job-name": mpijob["metadata"]["name"]}
    return common | ({f"{LABEL}/job-role": role} if role else {})


def service(mpijob: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(mpijob, mpijob["metadata"]["name"]),
        "spec": {"clusterIP": "None", "selector": _labels(mpijob), "publishNotReadyAddresses": False},
    }


def config_map(mpijob: Manifest, running: Sequence[str] = ()) -> Manifest:
    """running: names of the running workers."""
    name, place = mpijob["metadata"]["name"], mpijob["metadata"]["namespace"]
    spec = mpijob["spec"]
    workers = range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])
    hosts = [f"{name}-worker-{i}.{name}.{place}.svc slots={spec['slotsPerWorker']}\n" for i in workers]
    found = [f"echo {worker}.{name}.{place}.svc\n" for worker in sorted(running)]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(mpijob, f"{name}-config"),
        "data": {"hostfile": "".join(hosts), "discover_hosts.sh": "".join(["#!/bin/sh\n", *found])},
    }


def secret(mpijob: Manifest, private: str, public: str) -> Manifest:
    """private: an EC key as PEM. public: as in authorized_keys."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(mpijob, f"{mpijob['metadata']['name']}-ssh"),
        "type": "kubernetes.io/ssh-auth",
        "stringData": {"ssh-privatekey": private, "ssh-publickey": public},
    }


def worker(mpijob: Manifest, index: int) -> Manifest:
    job, name = mpijob["metadata"]["name"], f"{mpijob['metadata']['name']}-worker-{index}"
    replica = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]
    template = _with_ssh(mpijob, replica["template"])
    spec, container = template["spec"], template["spec"]["containers"][0]
    search = f"{job}.{mpijob['metadata']['namespace']}.svc.cluster.local"
    spec |= {"hostname": name, "subdomain": job, "restartPolicy": replica["restartPolicy"]}
    spec["dnsConfig"] = {"searches": [search]}
    container["env"].append({"name": "K_MPI_JOB_ROLE", "value": "worker"})
    labels = template["metadata"]["labels"] | _labels(mpijob, "worker")
    made = _metadata(mpijob, name, labels | {f"{LABEL}/replica-index": str(index)})
    made["annotations"] = template["metadata"].get("annotations", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


def launcher_job(mpijob: Manifest) -> Manifest:
    name, replica = mpijob["metadata"]["name"], mpijob["spec"]["mpiReplicaSpecs"]["Launcher"]
    template = _with_ssh(mpijob, replica["template"])
    spec, container = template["spec"], template["spec"]["containers"][0]
    template["metadata"]["labels"] |= _labels(mpijob, "launcher")
    spec |= {"hostname": f"{name}-launcher", "subdomain": name, "restartPolicy": replica["restartPolicy"]}
    variables = {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": str(mpijob["spec"]["slotsPerWorker"]),
    }
    container["env"] += [{"name": key, "value": value} for key, value in variables.items()]
    container["env"] += [{"name": "NVIDIA_VISIBLE_DEVICES"}, {"name": "NVIDIA_DRIVER_CAPABILITIES"}]
    items = [
        {"key": "hostfile", "path": "hostfile", "mode": 0o444},
        {"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555},
    ]
    source = {"name": f"{name}-config", "items": items}
    spec["volumes"].append({"name": "mpi-job-config", "configMap": source})
    container["volumeMounts"].append({"name": "mpi-job-config", "mountPath": "/etc/mpi"})
    limit = mpijob["spec"]["runPolicy"]["backoffLimit"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(mpijob, f"{name}-launcher"),
        "spec": {"backoffLimit": limit, "template": template},
    }


def _with_ssh(mpijob: Manifest, template: Manifest) -> Manifest:
    made = copy.deepcopy(template)
    items = [
        ("ssh-privatekey", "id_rsa"),
        ("ssh-publickey", "id_rsa.pub"),
        ("ssh-publickey", "authorized_keys"),
    ]
    source = {
        "secretName": f"{mpijob['metadata']['name']}-ssh",
        "items": [{"key": key, "path": path} for key, path in items],
    }
    made["spec"]["volumes"].append({"name": "ssh-auth", "secret": source})
    mount = {"name": "ssh-auth", "mountPath": mpijob["spec"]["sshAuthMountPath"]}
    made["spec"]["containers"][0]["volumeMounts"].append(mount)
    return made


def condition(kind: str, holds: bool, reason: str, message: str, time: str) -> Manifest:
    return {
        "type": kind,
        "status": str(holds),
        "reason": reason,
        "message": message,
        "lastUpdateTime": time,
        "lastTransitionTime": time,
    }


@dataclass
class MpiOperator:
    """mpi-operator, and the Job controller for its launchers, in a cluster in memory: one sync a step."""

    cluster: FakeCluster
    runs: bool = True
    launchers: int = field(default=0)

    def step(self) -> None:
        for mpijob in self.cluster.of_kind("MPIJob") if self.runs else ():
            if "deletionTimestamp" not in mpijob["metadata"]:
                self._sync(mpijob)

    def _sync(self, mpijob: Manifest) -> None:
        status = mpijob.get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        workers = self._pods(mpijob["metadata"]["uid"])
        if status.get("completionTime"):
            if mpijob["spec"]["runPolicy"]["cleanPodPolicy"] != "None":
                self._end(pod for pod in workers if pod["status"]["phase"] in ("Pending", "Running"))
            return
        self._say(mpijob, "Created", True, "MPIJobCreated") if not conditions else None
        job = self.cluster.objects.get(("Job", *_key(mpijob, "-launcher")))
        launchers = self._pods(job["metadata"]["uid"]) if job else []
        suspended = bool(mpijob["spec"]["runPolicy"].get("suspend"))
        for made in (service(mpijob), config_map(mpijob)):
            if (
                made["kind"],
                *_key(mpijob, made["metadata"]["name"], whole=True),
            ) not in self.cluster.objects:
                self.cluster.add(made)
        if suspended:
            self._end([*workers, *launchers])
            workers = launchers = []
        else:
            self._make_workers(mpijob, workers)
            workers = self._pods(mpijob["metadata"]["uid"])
        if job is None:
            if all(_is_ready(pod) for pod in workers):
                made = launcher_job(mpijob)
                made["spec"]["suspend"] = suspended
                self.cluster.add(made)
        else:
            if job["spec"]["suspend"] != suspended:
                self._suspend(job, suspended)
            if not suspended and not launchers and not job.get("tried"):
                self._make_launcher(job)
        if suspended:
            self._say(mpijob, "Suspended", True, "MPIJobSuspended")
            self._say(mpijob, "Running", False, "MPIJobSuspended")
            return
        if "Suspended" in conditions:
            self._say(mpijob, "Suspended", False, "MPIJobResumed")
        self._tell(mpijob, job, launchers, workers)

    def _make_workers(self, mpijob: Manifest, there: Sequence[Manifest]) -> None:
        names = {pod["metadata"]["name"] for pod in there}
        for index in range(mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]):
            made = worker(mpijob, index)
            if made["metadata"]["name"] not in names:
                self.cluster.add(made)

    def _suspend(self, job: Manifest, suspended: bool) -> None:
        """Suspend or resume a Job as the Job controller does. The next pod does not count as a retry."""

        def change(there: Manifest) -> None:
            there["spec"]["suspend"] = suspended
            there.pop("tried", None)

        metadata = job["metadata"]
        self.cluster.change(("Job", metadata["namespace"], metadata["name"]), change)
        job.pop("tried", None)

    def _make_launcher(self, job: Manifest) -> None:
        self.launchers += 1
        name, template = job["metadata"]["name"], copy.deepcopy(job["spec"]["template"])
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        made = {
            "name": f"{name}-x{self.launchers:04}",
            "namespace": job["metadata"]["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
        }
        self.cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template["spec"]})

    def _tell(
        self,
        mpijob: Manifest,
        job: Manifest | None,
        launchers: Sequence[Manifest],
        workers: Sequence[Manifest],
    ) -> None:
        phases = [pod["status"]["phase"] for pod in launchers]
        if "Succeeded" in phases:
            self._say(mpijob, "Succeeded", True, "MPIJobSucceeded", completed=True)
        elif "Failed" in phases or (job and job.get("tried") and not launchers):
            self._say(mpijob, "Failed", True, "BackoffLimitExceeded/", completed=True)
        elif any(pod["status"].get("reason") == "Evicted" for pod in workers):
            self._say(mpijob, "Failed", True, "MPIJobEvicted")
        elif "Running" in phases and all(pod["status"]["phase"] == "Running" for pod in workers):
            self._say(mpijob, "Running", True, "MPIJobRunning")
        if job and launchers and not job.get("tried"):
            self.cluster.change(("Job", *_key(mpijob, "-launcher")), lambda job: job.update(tried=True))

    def _say(self, mpijob: Manifest, kind: str, holds: bool, reason: str, *, completed: bool = False) -> None:
        now = written_time(self.cluster.now)
        said = condition(kind, holds, reason, f"MPIJob: {reason}", now)

        def change(there: Manifest) -> None:
            status = there.setdefault("status", {})
            known = status.setdefault("conditions", [])
            if any((c["type"], c["status"], c["reason"]) == (kind, str(holds), reason) for c in known):
                return
            status["conditions"] = [*(c for c in known if c["type"] != kind), said]
            if completed:
                status["completionTime"] = now

        self.cluster.change(("MPIJob", *_key(mpijob)), change)

    def _pods(self, uid: str) -> list[Manifest]:
        return [pod for pod in self.cluster.of_kind("Pod") if controlled_by(pod) == uid]

    def _end(self, pods: object) -> None:
        for pod in list(pods):  # type: ignore[call-overload]
            self.cluster.end_pod(pod)


def _key(mpijob: Manifest, name: str = "", *, whole: bool = False) -> tuple[str, str]:
    metadata = mpijob["metadata"]
    return metadata["namespace"], name if whole else f"{metadata['name']}{name}"


def _is_ready(pod: Manifest) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
