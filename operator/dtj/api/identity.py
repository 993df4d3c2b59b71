"""What the resource and its children are called in the API."""

from __future__ import annotations

from dtj_trainer.contract.distribution import version

GROUP = "dtj.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DistributedTrainingJob"
PLURAL = "distributedtrainingjobs"
SINGULAR = "distributedtrainingjob"
SHORT_NAME = "dtj"
CATEGORIES = ("all", "training")

LABEL_JOB = f"{GROUP}/job"
LABEL_ROLE = f"{GROUP}/role"
LABEL_INDEX = f"{GROUP}/index"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_TENSORBOARD = f"{GROUP}/tensorboard"
"""Of the pod of a job's TensorBoard, which is none of LABEL_JOB's: that has the job's name."""
LABEL_RECORD = f"{GROUP}/record"
"""Of the pod that records a job's end, which is none of LABEL_JOB's: that has the job's name."""
LABEL_UID = f"{GROUP}/uid"
"""On pods that another controller makes for a job: the uid of the job."""
LABEL_CODE = f"{GROUP}/code"
"""On ConfigMaps with the archive of spec.code, which the operator does not cache: the name of the job."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "dtj-operator"


def own_image(name: str, registry: str | None = None) -> str:
    """Return the reference of one of dtj's images in this version. Without a registry, the image is on the nodes."""
    image = f"{name}:{version()}"
    return f"{registry.rstrip('/')}/{image}" if registry else image
