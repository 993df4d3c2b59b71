"""Kinds whose schema Kubernetes does not have: strict subsets of the published schemas, written by hand.

A field that is not here is refused: add it only as the maker's schema has it.

- ServiceMonitor, PrometheusRule: monitoring.coreos.com/v1 of prometheus-operator v0.93.0,
  https://github.com/prometheus-operator/prometheus-operator/tree/v0.93.0/example/prometheus-operator-crd
- NodePool, EC2NodeClass: karpenter.sh/v1 and karpenter.k8s.aws/v1 of Karpenter v1.14.1,
  https://github.com/aws/karpenter-provider-aws/tree/v1.14.1/pkg/apis/crds
- Certificate, Issuer: cert-manager.io/v1 of cert-manager v1.18,
  https://github.com/cert-manager/cert-manager/tree/v1.18.0/deploy/crds
- ClusterConfig: eksctl.io/v1alpha5 of eksctl v0.230.0, which reads it itself,
  https://github.com/eksctl-io/eksctl/blob/v0.230.0/pkg/apis/eksctl.io/v1alpha5/assets/schema.json
"""

from __future__ import annotations

from typing import Any

import jsonschema

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h|d|w|y))+$"}
KARPENTERS_DURATION: Schema = {"type": "string", "pattern": r"^(([0-9]+(s|m|h))+|Never)$"}
LABEL_KEY: Schema = {
    "type": "string",
    "pattern": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
}
LABEL_VALUE: Schema = {
    "type": "string",
    "maxLength": 63,
    "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
}
EFFECT: Schema = {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def some(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def fields(needed: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": needed | (optional or {}),
        "required": list(needed),
        "additionalProperties": False,
    }


def resource(api_version: str, kind: str, spec: Schema) -> Schema:
    metadata = fields({"name": TEXT}, {"namespace": TEXT, "labels": TEXTS, "annotations": TEXTS})
    return fields(
        {"apiVersion": one_of(api_version), "kind": one_of(kind), "metadata": metadata, "spec": spec}
    )


RELABELING = fields(
    {},
    {
        "sourceLabels": some(TEXT),
        "separator": TEXT,
        "targetLabel": TEXT,
        "regex": TEXT,
        "replacement": TEXT,
        "action": one_of("replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"),
    },
)
SERVICE_MONITOR = resource(
    "monitoring.coreos.com/v1",
    "ServiceMonitor",
    fields(
        {
            "selector": fields({"matchLabels": TEXTS}),
            "endpoints": some(
                fields(
                    {"port": TEXT},
                    {
                        "path": TEXT,
                        "interval": DURATION,
                        "scrapeTimeout": DURATION,
                        "relabelings": some(RELABELING),
                        "metricRelabelings": some(RELABELING),
                    },
                )
            ),
        },
        {"namespaceSelector": fields({"matchNames": some(TEXT)})},
    ),
)
PROMETHEUS_RULE = resource(
    "monitoring.coreos.com/v1",
    "PrometheusRule",
    fields(
        {
            "groups": some(
                fields(
                    {
                        "name": TEXT,
                        "rules": some(
                            fields(
                                {"alert": TEXT, "expr": TEXT},
                                {"for": DURATION, "labels": TEXTS, "annotations": TEXTS},
                            )
                        ),
                    }
                )
            )
        }
    ),
)
NODE_POOL = resource(
    "karpenter.sh/v1",
    "NodePool",
    fields(
        {
            "template": fields(
                {
                    "spec": fields(
                        {
                            "nodeClassRef": fields({"group": TEXT, "kind": TEXT, "name": TEXT}),
                            "requirements": some(
                                fields(
                                    {
                                        "key": LABEL_KEY,
                                        "operator": one_of(
                                            "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"
                                        ),
                                    },
                                    {"values": some(LABEL_VALUE)},
                                )
                            ),
                        },
                        {
                            "taints": some(
                                fields({"key": LABEL_KEY, "effect": EFFECT}, {"value": LABEL_VALUE})
                            ),
                            "expireAfter": KARPENTERS_DURATION,
                        },
                    )
                },
                {"metadata": fields({}, {"labels": TEXTS, "annotations": TEXTS})},
            )
        },
        {
            "disruption": fields(
                {"consolidateAfter": KARPENTERS_DURATION},
                {"consolidationPolicy": one_of("WhenEmpty", "WhenEmptyOrUnderutilized")},
            ),
            "limits": TEXTS,
        },
    ),
)
SELECTOR_TERMS = some(fields({}, {"tags": TEXTS, "id": TEXT}))
EC2_NODE_CLASS = resource(
    "karpenter.k8s.aws/v1",
    "EC2NodeClass",
    fields(
        {
            "amiSelectorTerms": some(fields({"alias": {"type": "string", "pattern": r"^[a-z0-9]+@.+$"}})),
            "subnetSelectorTerms": SELECTOR_TERMS,
            "securityGroupSelectorTerms": SELECTOR_TERMS,
            "role": TEXT,
        },
        {
            "blockDeviceMappings": some(
                fields(
                    {"deviceName": TEXT},
                    {
                        "ebs": fields(
                            {},
                            {
                                "volumeSize": {"type": "string", "pattern": r"^[0-9]+(G|T|Gi|Ti)$"},
                                "volumeType": one_of("standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"),
                                "encrypted": FLAG,
                                "deleteOnTermination": FLAG,
                            },
                        )
                    },
                )
            ),
            "metadataOptions": fields(
                {},
                {
                    "httpTokens": one_of("required", "optional"),
                    "httpPutResponseHopLimit": {"type": "integer", "minimum": 1, "maximum": 64},
                },
            ),
        },
    ),
)
WELL_KNOWN = fields({}, {"autoScaler": FLAG})
ADDON = fields({"name": TEXT}, {"version": TEXT})
CLUSTER_CONFIG = fields(
    {
        "apiVersion": one_of("eksctl.io/v1alpha5"),
        "kind": one_of("ClusterConfig"),
        "metadata": fields({"name": TEXT, "region": TEXT}, {"version": TEXT, "tags": TEXTS}),
    },
    {
        "iam": fields(
            {},
            {
                "withOIDC": FLAG,
                "serviceAccounts": some(
                    fields(
                        {"metadata": fields({"name": TEXT, "namespace": TEXT})},
                        {"attachPolicyARNs": some(TEXT), "wellKnownPolicies": WELL_KNOWN},
                    )
                ),
                "podIdentityAssociations": some(
                    fields(
                        {"namespace": TEXT, "serviceAccountName": TEXT},
                        {
                            "createServiceAccount": FLAG,
                            "permissionPolicyARNs": some(TEXT),
                            "wellKnownPolicies": WELL_KNOWN,
                        },
                    )
                ),
            },
        ),
        "addons": some(ADDON),
        "managedNodeGroups": some(
            fields(
                {"name": TEXT},
                {
                    "instanceTypes": some(TEXT),
                    "spot": FLAG,
                    "minSize": NUMBER,
                    "desiredCapacity": NUMBER,
                    "maxSize": NUMBER,
                    "availabilityZones": some(TEXT),
                    "volumeSize": NUMBER,
                    "volumeEncrypted": FLAG,
                    "privateNetworking": FLAG,
                    "disableIMDSv1": FLAG,
                    "disablePodIMDS": FLAG,
                    "labels": TEXTS,
                    "tags": TEXTS,
                    "taints": some(fields({"key": LABEL_KEY, "effect": EFFECT}, {"value": LABEL_VALUE})),
                    "propagateASGTags": FLAG,
                },
            )
        ),
    },
)
CERTIFICATE = resource(
    "cert-manager.io/v1",
    "Certificate",
    fields(
        {
            "secretName": TEXT,
            "issuerRef": fields({"name": TEXT}, {"kind": one_of("Issuer", "ClusterIssuer"), "group": TEXT}),
        },
        {
            "isCA": FLAG,
            "commonName": {"type": "string", "maxLength": 64},
            "dnsNames": some(TEXT),
            "duration": DURATION,
            "privateKey": fields(
                {},
                {
                    "algorithm": one_of("RSA", "ECDSA", "Ed25519"),
                    "size": NUMBER,
                    "rotationPolicy": one_of("Never", "Always"),
                },
            ),
            "usages": some(one_of("digital signature", "server auth")),
        },
    ),
)
ISSUER = resource(
    "cert-manager.io/v1",
    "Issuer",
    fields({}, {"selfSigned": fields({}), "ca": fields({"secretName": TEXT})}),
)
FOREIGN: dict[str, Schema] = {
    "Certificate": CERTIFICATE,
    "Issuer": ISSUER,
    "ServiceMonitor": SERVICE_MONITOR,
    "PrometheusRule": PROMETHEUS_RULE,
    "NodePool": NODE_POOL,
    "EC2NodeClass": EC2_NODE_CLASS,
    "ClusterConfig": CLUSTER_CONFIG,
}


def validate_foreign(made: dict[str, Any]) -> None:
    """Raises jsonschema's ValidationError for what the maker would refuse, or what is not written down here."""
    jsonschema.validate(made, FOREIGN[made["kind"]], jsonschema.Draft202012Validator)
