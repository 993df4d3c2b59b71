"""DNS of the cluster: dnsmasq with the records from a watch of Services and Endpoints.

Run as a program, this is the watcher. dnsmasq reads a file a Service from a folder, and reads it again at
once when it changes.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.local.certificates import CA, certificate, key
from tests.cluster.local.control_plane import kubectl
from tests.cluster.local.layout import ADDRESS, API, DOMAIN
from tests.cluster.local.paths import PREFIX, PREFIX_VARIABLE, RUN
from tests.cluster.local.processes import Component

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = RUN / "dns" / "hosts"
NEW = RUN / "dns" / "new"
WATCH_SECONDS = 300
RETRY_SECONDS = 0.5
USER = "dtj-cluster-dns"
ROOT = Path(__file__).parents[3]


def server() -> Component:
    """dnsmasq: the cluster's names from the folder, all others from where the machine asks."""
    for folder in (HOSTS, NEW):
        folder.mkdir(parents=True, exist_ok=True)
    return Component(
        "dnsmasq",
        (
            "dnsmasq",
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file=",
            "--user=root",
            "--log-facility=-",
            "--bind-interfaces",
            f"--listen-address={ADDRESS}",
            "--no-hosts",
            f"--hostsdir={HOSTS}",
            f"--local=/{DOMAIN}/",
            "--no-negcache",
        ),
    )


def watcher() -> Component:
    """This module, run as a program with an identity that may read Services and Endpoints."""
    return Component(
        "dns-watcher",
        (sys.executable, "-m", "tests.cluster.local.dns"),
        ready=lambda: answers(f"kubernetes.default.svc.{DOMAIN}"),
        env=(("PYTHONPATH", str(ROOT)), ("PYTHONUNBUFFERED", "1"), (PREFIX_VARIABLE, PREFIX)),
    )


def grant() -> None:
    """Let the watcher read what `system:kube-dns`, a role every cluster has, may read."""
    if not kubectl("get", "clusterrolebinding", USER, "--ignore-not-found"):
        kubectl("create", "clusterrolebinding", USER, "--clusterrole=system:kube-dns", f"--user={USER}")


def answers(name: str) -> bool:
    """Whether dnsmasq knows an address of the name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.5)
        try:
            client.connect((ADDRESS, 53))
            client.send(query)
            answer = client.recv(512)
        except OSError:
            return False
    code, count = answer[3] & 0xF, struct.unpack(">H", answer[6:8])[0]
    return code == 0 and count > 0


def records(service: dict[str, Any] | None, endpoints: dict[str, Any] | None) -> str:
    """The hosts file of a Service: its address, or its pods' addresses and their own names."""
    if service is None:
        return ""
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    full = f"{name}.{namespace}.svc.{DOMAIN}"
    address = service["spec"].get("clusterIP", "")
    if address and address != "None":
        return f"{address} {full}\n"
    ready = [one for subset in (endpoints or {}).get("subsets", []) for one in subset.get("addresses", [])]
    lines = {f"{one['ip']} {one['hostname']}.{full}" for one in ready if one.get("hostname")}
    lines |= {f"{one['ip']} {full}" for one in ready}
    # A pod's own name first: the first name of an address is what a reverse look-up answers.
    return "".join(f"{line}\n" for line in sorted(lines, key=lambda line: (line.endswith(f" {full}"), line)))


class Watcher:
    """What is known of Services and Endpoints, and the folder that says so."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[str, dict[str, dict[str, Any]]] = {"services": {}, "endpoints": {}}
        self.listed: set[str] = set()
        self.tls = ssl.create_default_context(cafile=str(CA))
        self.tls.load_cert_chain(certificate("dns"), key("dns"))
        # No proxy: the API is on this machine.
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls)
        )

    def follow(self, resource: str) -> None:
        """List and watch for ever; a broken watch lists again."""
        while True:
            try:
                version = self._list(resource)
                for event in self._watch(resource, version):
                    self._take(resource, event)
            except (OSError, ValueError, KeyError) as error:
                print(f"{resource}: {error!r}; again in {RETRY_SECONDS} s", file=sys.stderr)
                time.sleep(RETRY_SECONDS)

    def _list(self, resource: str) -> str:
        with self.opener.open(f"{API}/api/v1/{resource}", timeout=10) as answer:
            document = json.load(answer)
        with self.lock:
            before = set(self.known[resource])
            self.known[resource] = {_key(item): item for item in document["items"]}
            self.listed.add(resource)
            names = before | set(self.known[resource])
            if resource == "services":
                names |= {path.name for path in HOSTS.iterdir()}  # written by one that ran before
            for name in names:
                self._write(name)
        return str(document["metadata"]["resourceVersion"])

    def _watch(self, resource: str, version: str) -> Iterator[dict[str, Any]]:
        query = urllib.parse.urlencode(
            {"watch": "1", "resourceVersion": version, "timeoutSeconds": WATCH_SECONDS}
        )
        url = f"{API}/api/v1/{resource}?{query}"
        with self.opener.open(url, timeout=WATCH_SECONDS + 10) as answer:
            for line in answer:
                yield json.loads(line)

    def _take(self, resource: str, event: dict[str, Any]) -> None:
        if event["type"] == "ERROR":  # the version is too old
            raise ValueError(event["object"].get("message"))
        item = event["object"]
        with self.lock:
            if event["type"] == "DELETED":
                self.known[resource].pop(_key(item), None)
            else:
                self.known[resource][_key(item)] = item
            self._write(_key(item))

    def _write(self, name: str) -> None:
        """Put the file in place by a rename, so that a half one is never read."""
        if len(self.listed) < len(self.known):
            return
        text = records(self.known["services"].get(name), self.known["endpoints"].get(name))
        path = HOSTS / name
        if path.exists() and path.read_text() == text:
            return
        if not text and not path.exists():
            return
        # An emptied file stays: dnsmasq forgets what it said, which for a removed file is not sure.
        (NEW / name).write_text(text)
        (NEW / name).rename(path)


def _key(item: dict[str, Any]) -> str:
    return f"{item['metadata']['namespace']}.{item['metadata']['name']}"


def main() -> None:
    """Follow both until killed."""
    watcher = Watcher()
    threads = [threading.Thread(target=watcher.follow, args=(resource,)) for resource in watcher.known]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
