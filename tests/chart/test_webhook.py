"""The admission webhook of the chart: absent by default, and complete when enabled."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import pytest
import yaml

from dtj.admission.server import PATH, READY
from dtj.api.identity import GROUP, PLURAL, VERSION
from dtj.operator_flags import read_flags
from tests.chart.generated import GOLDEN
from tests.chart.helm import NAMESPACE, rendered
from tests.unit.support.authorizer import Right, rights_of

Manifest = dict[str, Any]
NAME = "dtj-operator-webhook"
ON: Manifest = {"webhook": {"enabled": True}}
BY_CERT_MANAGER: Manifest = {"webhook": {"enabled": True, "certManager": {"enabled": True}}}
EVERY = ["default", "two-namespaces", "eks", "monitored", "openshift", "bare"]


@cache
def case(name: str) -> dict[str, Manifest]:
    return rendered(yaml.safe_load((GOLDEN / name / "values.yaml").read_text()) or {})


def pod(made: dict[str, Manifest]) -> Manifest:
    spec: Manifest = made["Deployment/dtj-operator"]["spec"]["template"]["spec"]
    return spec


def webhook_of(made: dict[str, Manifest]) -> Manifest:
    (webhook,) = made[f"ValidatingWebhookConfiguration/{NAME}"]["webhooks"]
    return dict(webhook)


def flags_of(made: dict[str, Manifest]) -> Any:
    (container,) = pod(made)["containers"]
    return read_flags(
        [*container["args"], f"--lease-namespace={NAMESPACE}", f"--webhook-namespace={NAMESPACE}"]
    )


@pytest.mark.parametrize("name", EVERY)
def test_nothing_of_it_is_there_unless_it_is_wanted(name: str) -> None:
    made = case(name)
    (deployment,) = [each for each in made.values() if each["kind"] == "Deployment"]

    assert not [key for key in made if "webhook" in key.lower()]
    assert "webhook" not in yaml.safe_dump(deployment)


def test_the_api_server_asks_where_the_operator_answers() -> None:
    made = case("webhook")
    webhook, service = webhook_of(made), made[f"Service/{NAME}"]
    (container,) = pod(made)["containers"]
    (port,) = [port for port in container["ports"] if port["name"] == "webhook"]
    settings = flags_of(made).webhook

    assert webhook["clientConfig"]["service"] == {"name": NAME, "namespace": NAMESPACE, "path": PATH}
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(443, "webhook")]
    assert service["spec"]["selector"].items() <= (
        made["Deployment/dtj-operator"]["spec"]["template"]["metadata"]["labels"].items()
    )
    assert port["containerPort"] == settings.port == 10250
    assert (settings.name, settings.namespace, settings.folder) == (NAME, NAMESPACE, None)
    assert container["readinessProbe"]["httpGet"] == {"path": READY, "port": "webhook", "scheme": "HTTPS"}
    ingress = made["NetworkPolicy/dtj-operator"]["spec"]["ingress"]
    assert {"ports": [{"port": "webhook", "protocol": "TCP"}]} in ingress, "from wherever the API server is"


def test_it_is_asked_of_every_job_that_is_made_or_changed_and_of_nothing_else() -> None:
    webhook = webhook_of(rendered(ON))

    assert webhook["rules"] == [
        {
            "apiGroups": [GROUP], "apiVersions": [VERSION], "resources": [PLURAL],
            "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
        }
    ]  # fmt: skip
    assert (webhook["sideEffects"], webhook["admissionReviewVersions"]) == ("None", ["v1"])
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Ignore", 5)
    assert "namespaceSelector" not in webhook
    chosen = webhook_of(case("webhook"))
    assert (chosen["failurePolicy"], chosen["timeoutSeconds"]) == ("Fail", 3)


def test_of_some_namespaces_only_their_jobs_are_judged() -> None:
    assert webhook_of(case("webhook-cert-manager"))["namespaceSelector"] == {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
        ]
    }


def test_an_upgrade_resets_nothing_that_the_operator_writes() -> None:
    """What Helm's manifests never had, it leaves: https://helm.sh/docs/faq/changes_since_helm2/"""
    made = rendered(ON)

    assert "caBundle" not in webhook_of(made)["clientConfig"]
    assert not made[f"Secret/{NAME}"].keys() & {"data", "stringData", "immutable"}


def test_it_may_keep_its_certificate_and_say_whom_to_trust_and_nothing_more() -> None:
    def rights(values: Manifest) -> set[Right]:
        return set(rights_of(f"{NAMESPACE}/dtj-operator", rendered(values).values()))

    group = "admissionregistration.k8s.io"
    assert rights(ON) - rights({}) == {
        Right("get", "secrets", "", NAMESPACE, NAME),
        Right("update", "secrets", "", NAMESPACE, NAME),
        Right("get", "validatingwebhookconfigurations", group, "", NAME),
        Right("update", "validatingwebhookconfigurations", group, "", NAME),
    }
    assert rights(BY_CERT_MANAGER) == rights({}), "nothing is left for it to write"
    assert not [key for key in rendered(ON | {"rbac": {"create": False}}) if key.endswith(f"Role/{NAME}")]


def test_a_release_of_another_name_has_all_of_it_under_that() -> None:
    made = rendered(ON | {"fullnameOverride": "a" * 47} | {"networkPolicy": {"enabled": True}})
    names = {name.partition("/")[2] for name in made if "webhook" in name}

    assert names == {f"{'a' * 47}-webhook"}
    by_cert_manager = rendered(BY_CERT_MANAGER | {"fullnameOverride": "a" * 47})
    assert all(len(each["metadata"]["name"]) <= 63 for each in by_cert_manager.values())


# --- cert-manager ------------------------------------------------------------------------------------

_REF = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "kind": {"type": "string"}, "group": {"type": "string"}},
}
# What the chart's objects touch of the CRDs of cert-manager 1.16:
# https://pkg.go.dev/github.com/cert-manager/cert-manager@v1.16.5/pkg/apis/certmanager/v1
SCHEMAS: dict[str, Manifest] = {
    "Certificate": {
        "type": "object",
        "additionalProperties": False,
        "required": ["secretName", "issuerRef"],
        "properties": {
            "commonName": {"type": "string", "maxLength": 64},
            "dnsNames": {"type": "array", "items": {"type": "string"}},
            "duration": {"type": "string", "pattern": "^[0-9]+h$"},
            "isCA": {"type": "boolean"},
            "issuerRef": _REF,
            "privateKey": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "algorithm": {"enum": ["RSA", "ECDSA", "Ed25519"]},
                    "size": {"type": "integer"},
                    "rotationPolicy": {"enum": ["Never", "Always"]},
                },
            },
            "secretName": {"type": "string"},
            "usages": {
                "type": "array",
                "items": {
                    "enum": ["signing", "digital signature", "cert sign", "server auth", "client auth"]
                },
            },
        },
    },
    "Issuer": {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            "selfSigned": {"type": "object", "additionalProperties": False},
            "ca": {
                "type": "object",
                "additionalProperties": False,
                "required": ["secretName"],
                "properties": {"secretName": {"type": "string"}},
            },
        },
    },
}


def of_cert_manager(made: dict[str, Manifest]) -> dict[str, Manifest]:
    found = {key: each for key, each in made.items() if each["kind"] in SCHEMAS}
    for each in found.values():
        assert each["apiVersion"] == "cert-manager.io/v1"
        assert each["metadata"]["namespace"] == NAMESPACE
        jsonschema.validate(each["spec"], SCHEMAS[each["kind"]])
    return found


def test_cert_manager_makes_the_certificate_that_the_operator_serves() -> None:
    made = case("webhook-cert-manager")
    certificate = of_cert_manager(made)[f"Certificate/{NAME}"]["spec"]
    configuration = made[f"ValidatingWebhookConfiguration/{NAME}"]
    (volume,), (container,) = pod(made)["volumes"], pod(made)["containers"]
    (mount,) = container["volumeMounts"]

    assert certificate["dnsNames"] == [f"{NAME}.{NAMESPACE}.svc"]
    assert certificate["secretName"] == volume["secret"]["secretName"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], str(flags_of(made).webhook.folder))
    assert mount["readOnly"] is True
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{NAMESPACE}/{NAME}"
    }
    assert f"Secret/{NAME}" not in made, "cert-manager makes it"
    assert certificate["secretName"] != NAME, "whoever goes back gets the chart's own"


def test_without_an_issuer_a_ca_of_the_release_outlives_what_it_signs() -> None:
    made = of_cert_manager(rendered(BY_CERT_MANAGER))
    serving, authority = made[f"Certificate/{NAME}"]["spec"], made[f"Certificate/{NAME}-ca"]["spec"]

    assert (
        made[f"Issuer/{serving['issuerRef']['name']}"]["spec"]["ca"]["secretName"] == authority["secretName"]
    )
    assert "selfSigned" in made[f"Issuer/{authority['issuerRef']['name']}"]["spec"]
    assert authority["isCA"] is True
    assert authority["privateKey"]["rotationPolicy"] == "Never"
    assert int(authority["duration"][:-1]) > 10 * int(serving["duration"][:-1])


def test_an_issuer_of_ones_own_signs_it() -> None:
    ref = {"name": "internal", "kind": "ClusterIssuer"}
    values = {"webhook": {"enabled": True, "certManager": {"enabled": True, "issuerRef": ref}}}
    made = of_cert_manager(rendered(values))

    assert made.keys() == {f"Certificate/{NAME}"}
    assert made[f"Certificate/{NAME}"]["spec"]["issuerRef"] == ref
