"""The certificates of the webhook: issued, stored, trusted, renewed and repaired.

* the validity, the renewal and the CA bundle of a certificate
* the Secret: filled, shared by two replicas, repaired, never shown before API servers trust its CA
* a folder of certificates that somebody else renews
* TLS handshakes with a good, an expired and a missing certificate
"""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dtj.admission.certificates import Pair, expiry, is_due, issue, read_certificates, why_unfit
from dtj.admission.server import WebhookServer
from dtj.admission.service import FolderKeeper, SecretKeeper, Serving, UnusableCertificate
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from tests.unit.support.fake_cluster import Call, FakeCluster
from tests.unit.support.tls import HOST, trusted

NAME, NAMESPACE = "dtj-operator-webhook", "dtj-system"
LIFE = timedelta(days=90)
NOW = datetime.now(UTC).replace(microsecond=0)
EXPIRY = "dtj_webhook_certificate_expiry_timestamp_seconds"


# --- certificates ------------------------------------------------------------------------------------


def test_a_new_certificate_is_fit_for_its_host_until_it_expires() -> None:
    pair = issue(HOST, NOW, LIFE)

    assert why_unfit(pair, HOST, NOW) is None
    assert why_unfit(pair, HOST, NOW + LIFE - timedelta(seconds=1)) is None
    assert expiry(pair) == NOW + LIFE
    assert why_unfit(pair, HOST, NOW + LIFE) == "the certificate has expired"
    assert why_unfit(pair, "elsewhere.svc", NOW) == "the certificate is not for elsewhere.svc"


def test_a_certificate_is_valid_where_the_clock_is_behind() -> None:
    pair = issue(HOST, NOW, LIFE)

    assert why_unfit(pair, HOST, NOW - timedelta(minutes=59)) is None
    assert why_unfit(pair, HOST, NOW - timedelta(hours=2)) == "the certificate is not valid yet"


def test_a_certificate_is_due_before_two_thirds_of_its_life() -> None:
    pair = issue(HOST, NOW, LIFE)

    assert not is_due(pair, NOW + LIFE * 0.45)
    assert is_due(pair, NOW + LIFE * 0.55)


def test_old_cas_are_kept_until_they_expire() -> None:
    first = issue(HOST, NOW, LIFE)
    second = issue(HOST, NOW + LIFE / 2, LIFE, first.authorities)
    third = issue(HOST, NOW + LIFE, LIFE, second.authorities)

    assert read_certificates(second.authorities)[1:] == read_certificates(first.authorities)
    assert read_certificates(third.authorities)[1:] == read_certificates(second.authorities)[:1]


def test_repairs_without_end_do_not_fill_the_secret() -> None:
    pair = issue(HOST, NOW, LIFE)
    for _ in range(8):
        pair = issue(HOST, NOW, LIFE, pair.authorities)

    assert len(read_certificates(pair.authorities)) == 5
    assert why_unfit(pair, HOST, NOW) is None


ONE, OTHER = issue(HOST, NOW, LIFE), issue(HOST, NOW, LIFE)
UNFIT = {
    "nothing": Pair(b"", b""),
    "no certificate": Pair(b"", ONE.key, ONE.authorities),
    "text": Pair(b"certificate", b"key", b"authorities"),
    "a broken certificate": Pair(ONE.certificate.replace(b"M", b"N"), ONE.key, ONE.authorities),
    "a broken key": Pair(ONE.certificate, ONE.key[:60], ONE.authorities),
    "another key": Pair(ONE.certificate, OTHER.key, ONE.authorities),
    "another CA": Pair(ONE.certificate, ONE.key, OTHER.authorities),
    "no CA": Pair(ONE.certificate, ONE.key),
    "a CA's own certificate": Pair(ONE.authorities, ONE.key, ONE.authorities),
    "another host": issue("elsewhere.svc", NOW, LIFE),
    "expired": issue(HOST, NOW - 2 * LIFE, LIFE),
    "not yet valid": issue(HOST, NOW + LIFE, LIFE),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_no_client_would_trust_is_told(name: str) -> None:
    assert why_unfit(UNFIT[name], HOST, NOW)


# --- the Secret --------------------------------------------------------------------------------------


def secret(pair: Pair | None = None) -> Manifest:
    made: Manifest = {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"helm.sh/chart": "dtj-operator"}},
    }  # fmt: skip
    if pair:
        parts = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.authorities}
        made["data"] = {key: base64.b64encode(value).decode() for key, value in parts.items()}
    return made


def configuration(bundle: bytes | None = None) -> Manifest:
    service = {"name": NAME, "namespace": NAMESPACE, "path": "/validate"}
    client = {"service": service} | ({"caBundle": base64.b64encode(bundle).decode()} if bundle else {})
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [{"name": "distributedtrainingjobs.dtj.dev", "clientConfig": client}],
    }


class World:
    """An API server, a clock, and the operator's replicas."""

    def __init__(self, *objects: Manifest) -> None:
        self.api = FakeCluster()
        for manifest in objects:
            self.api.put(manifest)
        self.now = NOW

    def replica(self) -> Replica:
        return Replica(self)

    @property
    def stored(self) -> Pair:
        data = self.api.objects["Secret", NAMESPACE, NAME]["data"]
        return Pair(*(base64.b64decode(data[key]) for key in ("tls.crt", "tls.key", "ca.crt")))

    @property
    def webhooks(self) -> list[Manifest]:
        (configuration,) = self.api.of_kind("ValidatingWebhookConfiguration")
        return list(configuration["webhooks"])

    @property
    def bundle(self) -> bytes:
        (webhook,) = self.webhooks
        return base64.b64decode(webhook["clientConfig"]["caBundle"])

    def overwrite(self, manifest: Manifest) -> None:
        """As somebody else does."""
        self.api.put(manifest)


class Replica:
    def __init__(self, world: World) -> None:
        self.registry = CollectorRegistry()
        self.serving = Serving(self.registry)
        self.keeper = SecretKeeper(world.api, NAMESPACE, NAME, LIFE, self.serving, lambda: world.now)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.keeper.look()

    @property
    def shown(self) -> Pair | None:
        return self.serving._pair


def fit(pair: Pair | None, world: World) -> bool:
    """Whether the API server takes this certificate now."""
    return (
        pair is not None
        and why_unfit(Pair(pair.certificate, pair.key, world.bundle), HOST, world.now) is None
    )


async def test_an_empty_secret_is_filled_and_trusted() -> None:
    world = World(secret(), configuration())
    replica = world.replica()
    await replica.look()

    assert fit(replica.shown, world)
    assert world.stored == replica.shown
    assert world.bundle == world.stored.authorities
    assert world.api.objects["Secret", NAMESPACE, NAME]["metadata"]["labels"], "what the chart wrote stays"
    (webhook,) = world.webhooks
    assert webhook["clientConfig"]["service"]["path"] == "/validate"
    assert replica.registry.get_sample_value(EXPIRY) == (NOW + LIFE).timestamp()


async def test_what_is_right_is_only_read() -> None:
    world = World(secret(ONE), configuration(ONE.authorities))
    replica = world.replica()
    await replica.look(3)

    assert replica.shown == ONE
    assert world.api.writes == []


async def test_two_replicas_that_begin_at_once_agree() -> None:
    world = World(secret(), configuration())
    one, two = world.replica(), world.replica()
    ask = world.api.get

    async def slowly(manifest: Manifest) -> Manifest | None:
        answer = await ask(manifest)
        await asyncio.sleep(0)  # the other reads the same before either writes
        return answer

    world.api.get = slowly  # type: ignore[method-assign]
    for look in range(3):
        done = await asyncio.gather(one.look(), two.look(), return_exceptions=True)
        # Of two who tell the API server the same at once, one comes again.
        assert all(result is None or (look == 0 and result.status == 409) for result in done)

    assert one.shown == two.shown == world.stored
    assert fit(one.shown, world)
    assert [name[0] for name, _ in world.api.log].count("Secret") == 2, (
        "one put by the test, one by a replica"
    )


async def test_every_replica_is_trusted_all_the_time_that_certificates_change() -> None:
    world = World(secret(), configuration())
    one, two = world.replica(), world.replica()
    seen = set()
    for step in range(60):
        world.now = NOW + LIFE * step / 15
        for replica in (one, two):
            await replica.look()
            assert fit(one.shown, world)
            assert two.shown is None or fit(two.shown, world)
        seen.add(world.stored.certificate)

    assert len(seen) >= 6, "four lives, each renewed at its half"


async def test_a_new_certificate_is_shown_only_once_api_servers_know_its_ca() -> None:
    world = World(secret(ONE), configuration(ONE.authorities))
    one, two = world.replica(), world.replica()
    await one.look(2)
    await two.look(2)
    world.now = NOW + LIFE * 0.6
    await one.look()
    await two.look()

    assert world.stored != ONE
    assert world.bundle == world.stored.authorities
    assert one.shown == two.shown == ONE
    await one.look()
    await two.look()
    assert one.shown == two.shown == world.stored


@pytest.mark.parametrize("name", UNFIT)
async def test_a_secret_that_is_of_no_use_is_repaired_at_the_next_look(name: str) -> None:
    world = World(secret(UNFIT[name]), configuration(ONE.authorities))
    replica = world.replica()
    await replica.look()

    assert world.stored != UNFIT[name]
    assert fit(replica.shown, world)


async def test_what_was_served_stays_trusted_while_a_lost_secret_is_repaired() -> None:
    world = World(secret(ONE), configuration(ONE.authorities))
    one, two = world.replica(), world.replica()
    await one.look(2)
    await two.look(2)
    world.api.remove(("Secret", NAMESPACE, NAME))
    for replica in (one, two, one, two):
        await replica.look()
        assert fit(one.shown, world)
        assert fit(two.shown, world)

    assert world.api.writes[0] == Call("create", "Secret", NAME)
    assert one.shown == two.shown == world.stored != ONE


async def test_data_that_is_no_base64_is_repaired() -> None:
    broken = secret(ONE)
    broken["data"]["tls.crt"] = "?"
    world = World(broken, configuration())
    replica = world.replica()
    await replica.look()

    assert fit(replica.shown, world)


@pytest.mark.parametrize("bundle", [None, b"garbage", OTHER.authorities])
async def test_a_bundle_that_somebody_reset_is_repaired_at_the_next_look(bundle: bytes | None) -> None:
    world = World(secret(ONE), configuration(ONE.authorities))
    replica = world.replica()
    await replica.look(2)
    world.overwrite(configuration(bundle))
    await replica.look()

    assert world.bundle == ONE.authorities
    assert replica.shown == ONE


async def test_every_webhook_of_the_configuration_trusts_the_ca() -> None:
    two = configuration()
    two["webhooks"].append(copy.deepcopy(two["webhooks"][0]) | {"name": "more.jobs.dtj.dev"})
    world = World(secret(), two)
    await world.replica().look()

    assert len({webhook["clientConfig"]["caBundle"] for webhook in world.webhooks}) == 1


async def test_without_a_configuration_it_serves_and_says_what_is_missing() -> None:
    world = World(secret())
    replica = world.replica()
    with pytest.raises(ApiError, match="there is no ValidatingWebhookConfiguration"):
        await replica.look()

    assert replica.shown == world.stored


@pytest.mark.parametrize("verb", ["get", "replace"])
@pytest.mark.parametrize("kind", ["Secret", "ValidatingWebhookConfiguration"])
async def test_a_right_that_is_missing_is_told_and_what_is_served_goes_on(verb: str, kind: str) -> None:
    world = World(secret(ONE), configuration(ONE.authorities))
    replica = world.replica()
    await replica.look(2)
    world.now = NOW + LIFE * 0.6

    def refuse(call: Call, _: Manifest) -> None:
        if (call.verb, call.kind) == (verb, kind):
            raise ApiError(403, "Forbidden", f"cannot {verb} {kind}")

    world.api.meanwhile = refuse
    with pytest.raises(ApiError, match=f"cannot {verb} {kind}"):
        await replica.look()

    assert replica.shown == ONE


async def test_a_secret_that_changes_at_every_write_is_told() -> None:
    world = World(secret(), configuration())

    def refuse(call: Call, _: Manifest) -> None:
        if call.verb == "replace":
            raise ApiError(409, "Conflict", "modified")

    world.api.meanwhile = refuse
    with pytest.raises(ApiError, match="changed during each of 3 attempts"):
        await world.replica().look()


# --- a folder ----------------------------------------------------------------------------------------


def write(folder: Path, pair: Pair) -> None:
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)


async def test_a_folder_is_served_and_served_anew_when_it_changes(tmp_path: Path) -> None:
    serving = Serving(CollectorRegistry())
    keeper = FolderKeeper(tmp_path, serving)
    with pytest.raises(UnusableCertificate, match=r"can't be read: .*tls\.crt"):
        await keeper.look()
    write(tmp_path, ONE)
    await keeper.look()
    assert serving._pair == Pair(ONE.certificate, ONE.key)
    write(tmp_path, OTHER)
    await keeper.look()
    assert serving._pair == Pair(OTHER.certificate, OTHER.key)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (Pair(ONE.certificate, OTHER.key), "can't be served: .*key values mismatch"),
        (Pair(b"garbage", ONE.key), "tls.crt does not contain a certificate"),
        (Pair(ONE.certificate, b"garbage"), "can't be served"),
    ],
)
async def test_half_of_a_change_is_told_and_the_pair_before_served(
    tmp_path: Path, pair: Pair, says: str
) -> None:
    serving = Serving(CollectorRegistry())
    keeper = FolderKeeper(tmp_path, serving)
    write(tmp_path, ONE)
    await keeper.look()
    write(tmp_path, pair)
    with pytest.raises(UnusableCertificate, match=says):
        await keeper.look()

    assert serving._pair == Pair(ONE.certificate, ONE.key)
    async with WebhookServer(CollectorRegistry()).served(0, serving.context, "127.0.0.1") as port:
        assert await trusted(port, ONE.authorities) == ""


# --- handshakes --------------------------------------------------------------------------------------


@pytest.fixture
async def served() -> AsyncIterator[Any]:
    serving = Serving(CollectorRegistry())
    async with WebhookServer(CollectorRegistry()).served(0, serving.context, "127.0.0.1") as port:
        yield serving, port


async def test_a_client_that_trusts_the_bundle_takes_the_certificate_for_its_host_alone(served: Any) -> None:
    serving, port = served
    serving.use(ONE)

    assert await trusted(port, ONE.authorities) == ""
    assert await trusted(port, OTHER.authorities + ONE.authorities) == ""
    assert "unable to get local issuer certificate" in await trusted(port, OTHER.authorities)
    assert "Hostname mismatch" in await trusted(port, ONE.authorities, "elsewhere.svc")


async def test_an_expired_certificate_is_refused_by_the_client_and_healed_by_the_next(served: Any) -> None:
    serving, port = served
    expired = issue(HOST, NOW - 2 * LIFE, LIFE)
    serving.use(expired)
    assert "certificate has expired" in await trusted(port, expired.authorities)

    world = World(secret(expired), configuration(expired.authorities))
    await SecretKeeper(world.api, NAMESPACE, NAME, LIFE, serving, lambda: world.now).look()

    assert await trusted(port, world.bundle) == ""


async def test_without_a_certificate_no_client_gets_through(served: Any) -> None:
    _, port = served

    assert await trusted(port, ONE.authorities)
