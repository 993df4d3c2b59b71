"""The admission webhook: kubectl's output for an invalid job, and jobs under an expired certificate.

* wrong and good jobs by kubectl
* jobs that were stored before the webhook
* a CA bundle that is lost
* an expired certificate

It belongs to a second release of the chart, for one namespace, whose operator waits: somebody else has its lease.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.chart.helm import objects, template
from tests.cluster.jobs import SYSTEM, KubectlError, Manifest, Namespace, example, kubectl, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
RELEASE = "admission"
NAME = f"{RELEASE}-webhook"
VALID_SECONDS = 60
SECONDS = 60
WEBHOOK_PAGE = Path(__file__).parents[2] / "docs/webhook.md"


@dataclass(frozen=True)
class Webhook:
    """A webhook that judges the jobs of one namespace."""

    namespace: Namespace
    release: list[Manifest]

    def apply(self, job: Manifest) -> str:
        """What kubectl says, whether it is taken or refused."""
        try:
            return self.namespace.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(job))
        except KubectlError as error:
            return str(error)

    def says(self, words: str, job: Manifest) -> str:
        """The same, once it has these words."""

        def there() -> str | None:
            said = self.apply(job)
            return said if words in said else None

        return until(f"kubectl to say {words!r}", there, SECONDS)

    def change(self, operation: str, field: str, value: str = "") -> None:
        """Change a field of the configuration, by JSON patch."""
        patch = json.dumps([{"op": operation, "path": f"/webhooks/0/{field}", "value": value}])
        kubectl("patch", "validatingwebhookconfiguration", NAME, "--type=json", "--patch", patch)

    def part(self, kind: str, name: str) -> str:
        """An object of the release, to be applied."""
        (found,) = [one for one in self.release if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return yaml.safe_dump(found)


def wrong(name: str) -> Manifest:
    """A job that only code can refuse, for two reasons."""
    job = example(name, env=[{"name": "DTJ_JOB", "value": "mine"}])
    job["spec"]["artifacts"]["resume"] = "FromURI"
    return job


@pytest.fixture(scope="module")
def webhook(shared_namespace: Namespace) -> Iterator[Webhook]:
    """It is there once an operator that waits has a certificate that the API server trusts."""
    place = shared_namespace.name
    # Older servers do not label it by themselves.
    kubectl("label", "--overwrite", "namespace", place, f"kubernetes.io/metadata.name={place}")
    shared_namespace.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(lease_of_another(place)))
    early = shared_namespace.apply(wrong("early"))
    early.wait(SECONDS, "Failed")
    release = rendered(place)
    shared_namespace.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(release))
    made = Webhook(shared_namespace, release)
    try:
        shared_namespace.kubectl(
            "rollout", "status", f"deployment/{RELEASE}", f"--timeout={SECONDS * PATIENCE}s", timeout=70
        )
        made.says("is invalid", wrong("mnist"))
        yield made
    finally:
        shared_namespace.kubectl("delete", "--wait=false", "--filename=-", stdin=yaml.safe_dump_all(release))


def lease_of_another(namespace: str) -> Manifest:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": RELEASE, "namespace": namespace},
        "spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 3600},
    }


def rendered(namespace: str) -> list[Manifest]:
    """The release, with the image of the operator that is installed."""
    image = kubectl(
        "--namespace", SYSTEM, "get", "deployment", "dtj-operator",
        "--output=jsonpath={.spec.template.spec.containers[0].image}",
    )  # fmt: skip
    repository, _, tag = image.rpartition(":")
    values = {
        "fullnameOverride": RELEASE,
        "image": {"repository": repository, "tag": tag},
        "replicas": 1,
        "watchNamespaces": [namespace],
        "crds": {"install": False},
        "userRoles": {"create": False},
        "podDisruptionBudget": {"enabled": False},
        "metrics": {"service": {"enabled": False}},
        "test": {"enabled": False},
        "webhook": {"enabled": True, "failurePolicy": "Fail"},
        "extraArgs": [f"--webhook-cert-validity={VALID_SECONDS}"],
    }
    return objects(template(values, f"--namespace={namespace}"))


def test_kubectl_tells_all_faults_at_once_and_nothing_is_made(webhook: Webhook) -> None:
    shown = re.search(
        r"^The DistributedTrainingJob .*?(?=```)", WEBHOOK_PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown

    said = webhook.says("is invalid", wrong("mnist"))
    assert [line.strip() for line in said.splitlines()] == shown[0].splitlines()
    with pytest.raises(KubectlError, match="is invalid"):
        webhook.namespace.kubectl("apply", "--dry-run=server", "-f-", stdin=yaml.safe_dump(wrong("mnist")))
    assert [job["metadata"]["name"] for job in webhook.namespace.list("dtj")] == ["early"]


def test_a_good_job_is_taken_and_its_strategy_stays(webhook: Webhook) -> None:
    good = webhook.namespace.apply(example("good", runPolicy={"suspend": True}))
    good.wait(SECONDS, "Suspended")

    with pytest.raises(KubectlError, match="strategy is immutable"):
        webhook.namespace.kubectl(
            "patch", "dtj", "good", "--type=merge", '--patch={"spec": {"strategy": "ParameterServer"}}'
        )
    assert good.get()["spec"]["strategy"] == "Horovod"
    webhook.namespace.kubectl("delete", "dtj", "good", "--wait")


def test_a_wrong_job_from_before_can_be_labelled_but_not_changed(webhook: Webhook) -> None:
    webhook.namespace.kubectl("label", "dtj", "early", "team=a")
    with pytest.raises(KubectlError, match="DTJ_JOB is set by the operator"):
        webhook.namespace.kubectl("patch", "dtj", "early", "--type=merge", '--patch={"spec": {"args": []}}')
    webhook.namespace.kubectl("delete", "dtj", "early", "--wait")


def test_a_bundle_that_got_lost_is_repaired(webhook: Webhook) -> None:
    webhook.change("remove", "clientConfig/caBundle")

    webhook.says("DTJ_JOB is set by the operator", wrong("mnist"))


def test_an_expired_certificate_refuses_or_lets_through_as_wanted_until_it_is_renewed(
    webhook: Webhook,
) -> None:
    binding = f"rolebinding/{NAME}"
    webhook.namespace.kubectl("delete", binding)
    webhook.says("x509: certificate has expired", wrong("mnist"))
    webhook.change("replace", "failurePolicy", "Ignore")
    webhook.says("distributedtrainingjob.dtj.dev/mnist", wrong("mnist"))
    webhook.namespace.kubectl("delete", "dtj", "mnist", "--wait")

    webhook.change("replace", "failurePolicy", "Fail")
    webhook.namespace.kubectl("apply", "-f-", stdin=webhook.part("RoleBinding", NAME))
    webhook.says("DTJ_JOB is set by the operator", wrong("other"))
