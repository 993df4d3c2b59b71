"""The CRD of MPIJobs, limited to the fields in objects of this project. All other fields are unknown fields.

After https://github.com/kubeflow/mpi-operator/blob/v0.8.0/manifests/base/kubeflow.org_mpijobs.yaml; the pod templates
are those of Kubernetes' core/v1, which that file spells out.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "format": "int32"}
TRUTH: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
QUANTITY: Schema = {"x-kubernetes-int-or-string": True}


def each(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def by_name(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def fields(*required: str, **properties: Schema) -> Schema:
    made: Schema = {"type": "object", "properties": properties}
    return made | ({"required": list(required)} if required else {})


_METADATA = fields(labels=by_name(TEXT), annotations=by_name(TEXT))
_SECURITY = fields(
    runAsNonRoot=TRUTH,
    runAsUser={"type": "integer", "format": "int64"},
    runAsGroup={"type": "integer", "format": "int64"},
    fsGroup={"type": "integer", "format": "int64"},
    seccompProfile=fields("type", type=TEXT),
)
_VARIABLE = fields(
    "name", name=TEXT, value=TEXT, valueFrom=fields(fieldRef=fields("fieldPath", fieldPath=TEXT))
)
_CONTAINER = fields(
    "name",
    name=TEXT,
    image=TEXT,
    command=each(TEXT),
    args=each(TEXT),
    env=each(_VARIABLE),
    envFrom=each(fields(secretRef=fields(name=TEXT))),
    resources=fields(requests=by_name(QUANTITY), limits=by_name(QUANTITY)),
    ports=each(fields("containerPort", name=TEXT, containerPort=WHOLE)),
    readinessProbe=fields(
        tcpSocket=fields("port", port=QUANTITY), periodSeconds=WHOLE, failureThreshold=WHOLE
    ),
    securityContext=fields(
        allowPrivilegeEscalation=TRUTH, capabilities=fields(drop=each(TEXT), add=each(TEXT)), runAsUser=WHOLE
    ),
    terminationMessagePolicy=TEXT,
    imagePullPolicy=TEXT,
    volumeMounts=each(fields("mountPath", "name", name=TEXT, mountPath=TEXT, readOnly=TRUTH)),
)
_VOLUME = fields(
    "name",
    name=TEXT,
    emptyDir=fields(medium=TEXT, sizeLimit=QUANTITY),
    configMap=fields(name=TEXT, defaultMode=WHOLE),
    secret=fields(secretName=TEXT, defaultMode=WHOLE),
)
_TOLERATION = fields(
    key=TEXT, operator=TEXT, value=TEXT, effect=TEXT, tolerationSeconds={"type": "integer", "format": "int64"}
)
_EXPRESSION = fields("key", "operator", key=TEXT, operator=TEXT, values=each(TEXT))
_PREFERENCE = fields(
    "preference", "weight", weight=WHOLE, preference=fields(matchExpressions=each(_EXPRESSION))
)
_POD = fields(
    "containers",
    containers=each(_CONTAINER),
    initContainers=each(_CONTAINER),
    volumes=each(_VOLUME),
    automountServiceAccountToken=TRUTH,
    enableServiceLinks=TRUTH,
    terminationGracePeriodSeconds={"type": "integer", "format": "int64"},
    securityContext=_SECURITY,
    tolerations=each(_TOLERATION),
    nodeSelector=by_name(TEXT),
    runtimeClassName=TEXT,
    serviceAccountName=TEXT,
    affinity=fields(nodeAffinity=fields(preferredDuringSchedulingIgnoredDuringExecution=each(_PREFERENCE))),
)
_REPLICA = fields(replicas=WHOLE, restartPolicy=TEXT, template=fields(metadata=_METADATA, spec=_POD))
_CONDITION = fields(
    "status",
    "type",
    type=TEXT,
    status={"type": "string", "enum": ["True", "False", "Unknown"]},
    reason=TEXT,
    message=TEXT,
    lastUpdateTime=TIME,
    lastTransitionTime=TIME,
)
_CONDITIONS = each(_CONDITION) | {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}
MPIJOB_SCHEMA: Schema = fields(
    apiVersion=TEXT,
    kind=TEXT,
    metadata={"type": "object"},
    spec=fields(
        "mpiReplicaSpecs",
        slotsPerWorker=WHOLE | {"default": 1},
        runLauncherAsWorker=TRUTH | {"default": False},
        sshAuthMountPath=TEXT | {"default": "/root/.ssh"},
        launcherCreationPolicy=TEXT | {"default": "AtStartup"},
        mpiImplementation=TEXT | {"enum": ["OpenMPI", "Intel", "MPICH"], "default": "OpenMPI"},
        runPolicy=fields(
            cleanPodPolicy=TEXT,
            backoffLimit=WHOLE,
            suspend=TRUTH | {"default": False},
            schedulingPolicy=fields(minAvailable=WHOLE, queue=TEXT),
        ),
        mpiReplicaSpecs=by_name(_REPLICA),
    ),
    status=fields(
        conditions=_CONDITIONS,
        replicaStatuses=by_name(fields(active=WHOLE, succeeded=WHOLE, failed=WHOLE, selector=TEXT)),
        startTime=TIME,
        completionTime=TIME,
        lastReconcileTime=TIME,
    ),
)


def mpijob_crd(*versions: str) -> dict[str, Any]:
    """The CustomResourceDefinition with these versions served, of which the last is stored."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "mpijobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"kind": "MPIJob", "listKind": "MPIJobList", "plural": "mpijobs", "singular": "mpijob"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[-1],
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": MPIJOB_SCHEMA},
                }
                for version in versions
            ],
        },
    }
