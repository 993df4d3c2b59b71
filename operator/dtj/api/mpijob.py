"""MPIJob of Kubeflow's mpi-operator, as far as a job is handed over to it.

Names of https://github.com/kubeflow/mpi-operator, v0.8.0: pkg/apis/kubeflow/v2beta1 and pkg/controller.
"""

from __future__ import annotations

MPIJOB_API_VERSION = "kubeflow.org/v2beta1"
"""Not v1, which is training-operator's: another controller's, with other fields, under the same name of the CRD."""
MPIJOB_KIND = "MPIJob"
MPIJOB_PLURAL = "mpijobs"

INDEX_LABEL = "training.kubeflow.org/replica-index"
"""On workers: their index."""
HOSTFILE = "/etc/mpi/hostfile"
"""In the launcher: all workers."""
VOLUMES = ("mpi-job-config", "ssh-auth")
"""Volumes that mpi-operator gives to its pods."""
MOUNTS = ("/etc/mpi",)
"""Where it mounts the first of them."""

QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class")
"""Labels by which Kueue queues an MPIJob."""
QUEUE_ANNOTATIONS = ("scheduling.volcano.sh/queue-name",)
"""Annotations from which mpi-operator takes the queue of Volcano's PodGroup."""
LONGEST_QUEUE = 253
"""Characters of a name in Kubernetes."""
