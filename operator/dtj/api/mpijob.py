"""Names of Kubeflow's MPIJob that dtj needs for jobs whose pods mpi-operator makes.

Names of https://github.com/kubeflow/mpi-operator, v0.8.0: pkg/apis/kubeflow/v2beta1 and pkg/controller.
"""

from __future__ import annotations

MPIJOB_API_VERSION = "kubeflow.org/v2beta1"
"""The API version that mpi-operator serves. Version v1 of the same CRD, with other fields, is training-operator's."""
MPIJOB_KIND = "MPIJob"
MPIJOB_PLURAL = "mpijobs"

INDEX_LABEL = "training.kubeflow.org/replica-index"
"""The label of a worker pod with the worker's index."""
HOSTFILE = "/etc/mpi/hostfile"
"""The file in the launcher pod that lists the hosts of all workers."""
VOLUMES = ("mpi-job-config", "ssh-auth")
"""Names of the volumes that mpi-operator adds to its pods."""
MOUNTS = ("/etc/mpi",)
"""Paths at which mpi-operator mounts its own volumes."""

QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class")
"""Labels by which Kueue queues an MPIJob."""
QUEUE_ANNOTATIONS = ("scheduling.volcano.sh/queue-name",)
"""Annotations from which mpi-operator takes the queue of Volcano's PodGroup."""
LONGEST_QUEUE = 253
"""The largest number of characters in the name of a queue, as of any Kubernetes object."""
