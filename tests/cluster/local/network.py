"""The network of the cluster on the machine: an address, forwarding, links to nodes, and their removal."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.local import namespaces
from tests.cluster.local.layout import ADDRESS, HOST_BRIDGE, LINK_PREFIX, NETWORK, NODES, Node
from tests.cluster.local.paths import RUN
from tests.cluster.progress import ClusterError
from tests.cluster.shell import run, succeeds

if TYPE_CHECKING:
    from collections.abc import Iterable

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
FORWARD_BEFORE = RUN / "ip-forward-before"
COMMENT = RUN.name
_COMMENTED = ("--match", "comment", "--comment", COMMENT)
RULES = (
    # Docker, where it runs, drops what is forwarded and not its own.
    ("filter", "FORWARD", "--source", NETWORK, "--jump", "ACCEPT"),
    ("filter", "FORWARD", "--destination", NETWORK, "--jump", "ACCEPT"),
    # Pods reach what the machine reaches.
    ("nat", "POSTROUTING", "--source", NETWORK, "!", "--destination", NETWORK, "--jump", "MASQUERADE"),
)
# kube-proxy's and the kubelet's chains, the CNI plugins' chains.
OUR_CHAIN = re.compile(r"\b(KUBE|CNI)-[A-Z0-9-]+")
FAMILIES = ("iptables", "ip6tables")


def set_up() -> None:
    """Give the machine the cluster's address and let it forward. Can be called again."""
    if not _links(HOST_BRIDGE):
        _check_free()
        run("ip", "link", "add", HOST_BRIDGE, "type", "bridge")
    # A bridge without ports: the kernel here may have no `dummy` devices.
    run("ip", "address", "replace", f"{ADDRESS}/32", "dev", HOST_BRIDGE)
    run("ip", "link", "set", HOST_BRIDGE, "up")
    if not FORWARD_BEFORE.exists():
        FORWARD_BEFORE.write_text(FORWARD.read_text())
    FORWARD.write_text("1\n")
    for rule in RULES:
        _insert(rule)
    for node in NODES:
        if node.gateway is not None:
            _connect(node)
            reconnect(node)


def cut_off(node: Node) -> None:
    """Drop whatever comes from the node or goes there; neither side is told. What runs there runs on."""
    for rule in _barrier(node):
        _insert(rule)


def reconnect(node: Node) -> None:
    """Let it through again, also where it was never cut off."""
    for table, *rule in _barrier(node):
        while succeeds("iptables", "--wait", "--table", table, "--delete", *rule, *_COMMENTED):
            pass


def tear_down() -> None:
    """Remove every device and rule of ours, whoever made it."""
    if shutil.which("ip"):
        for link in devices():
            succeeds("ip", "link", "delete", link)  # a veth may be gone with its other end
    for family in FAMILIES:
        _remove_rules(family)
    if FORWARD_BEFORE.exists():
        FORWARD.write_text(FORWARD_BEFORE.read_text())
        FORWARD_BEFORE.unlink()


def devices() -> list[str]:
    """Our bridges, what is attached to them, and the links to nodes."""
    bridges = [HOST_BRIDGE, *(node.bridge for node in NODES)]
    attached = [one for bridge in bridges if _links(bridge) for one in _links("master", bridge)]
    ours = [*bridges, *(node.link for node in NODES)]
    return [*attached, *(link for link in ours if _links(link))]


def rules() -> list[str]:
    """Our iptables rules and chains."""
    return [
        f"{family} {table}: {line}"
        for family in FAMILIES
        for table, lines in _tables(family).items()
        for line in lines
        if _is_ours(line)
    ]


def foreign_kubernetes() -> bool:
    """Whether another Kubernetes has its rules here: ours would get in its way, and `down` take them away."""
    return not RUN.exists() and any("KUBE-" in rule for rule in rules())


def _connect(node: Node) -> None:
    """A pair of devices between the machine and the node; each routes the other's pods over it."""
    namespaces.make(node)
    if not _links(node.link):
        other_end = ("type", "veth", "peer", "name", "eth0", "netns", node.network_namespace)
        run("ip", "link", "add", node.link, *other_end)
    run("ip", "address", "replace", f"{node.gateway}/{LINK_PREFIX}", "dev", node.link)
    run("ip", "link", "set", node.link, "up")
    run("ip", "route", "replace", node.pods, "via", node.address)
    for words in (
        ("link", "set", "lo", "up"),
        ("address", "replace", f"{node.address}/{LINK_PREFIX}", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("route", "replace", "default", "via", str(node.gateway)),
    ):
        run(*node.command("ip", *words))
    run(*node.command("sh", "-c", f"echo 1 > {FORWARD}"))


def disconnect(node: Node) -> None:
    """Take the node's network away, and the mounts made there with it."""
    succeeds("ip", "link", "delete", node.link)  # at once, not when the kernel gets to it
    namespaces.remove(node)


def _barrier(node: Node) -> tuple[tuple[str, ...], ...]:
    return (
        ("mangle", "PREROUTING", "--in-interface", node.link, "--jump", "DROP"),
        ("mangle", "POSTROUTING", "--out-interface", node.link, "--jump", "DROP"),
    )


def _insert(rule: tuple[str, ...]) -> None:
    table, *words = rule
    if not succeeds("iptables", "--wait", "--table", table, "--check", *words, *_COMMENTED):
        run("iptables", "--wait", "--table", table, "--insert", *words, *_COMMENTED)


def _check_free() -> None:
    wanted = ipaddress.ip_network(NETWORK)
    for route in json.loads(run("ip", "-json", "route", "show", "table", "main")):
        if route["dst"] == "default":
            continue
        there = ipaddress.ip_network(route["dst"], strict=False)
        if there.overlaps(wanted):
            raise ClusterError(
                f"this machine has a route to {there} ({route.get('dev')}), which the cluster's {NETWORK} "
                "overlaps: use `--cluster kind`"
            )


def _links(*selector: str) -> list[str]:
    words = ("show", *selector) if selector[0] == "master" else ("show", "dev", *selector)
    try:
        said = run("ip", "-json", "link", *words)
    except ClusterError:
        return []  # there is no such device; the kernel may just have removed it with a namespace
    return [link["ifname"] for link in json.loads(said or "[]") if link]


def _tables(family: str) -> dict[str, list[str]]:
    if not shutil.which(f"{family}-save"):
        return {}
    tables: dict[str, list[str]] = {}
    table = ""
    for line in run(f"{family}-save").splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith((":", "-A ")):
            tables.setdefault(table, []).append(line)
    return tables


def _is_ours(line: str) -> bool:
    return COMMENT in line or OUR_CHAIN.search(line) is not None


def _remove_rules(family: str) -> None:
    """In one step a table, and leaving other people's rules where they are."""
    script: list[str] = []
    for table, lines in _tables(family).items():
        ours = [line for line in lines if _is_ours(line)]
        if ours:
            script += [f"*{table}", *_removal(ours), "COMMIT"]
    if script:
        run(f"{family}-restore", "--wait", "--noflush", stdin="\n".join([*script, ""]))


def _removal(lines: Iterable[str]) -> list[str]:
    chains = [line[1:].split()[0] for line in lines if line.startswith(":")]
    in_other_chains = [line for line in lines if line.startswith("-A ") and line.split()[1] not in chains]
    return [
        *(f"-D {line.removeprefix('-A ')}" for line in in_other_chains),
        *(f"-F {chain}" for chain in chains),
        *(f"-X {chain}" for chain in chains),
    ]
