"""The containerd of each node, and the images in that containerd.

Images stay in the cache between clusters, so that a start needn't import gigabytes again; all else goes with
the cluster.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.archives import images_in
from tests.cluster.local import pause
from tests.cluster.local.paths import IMAGES
from tests.cluster.local.processes import Component
from tests.cluster.progress import ClusterError
from tests.cluster.shell import run, succeeds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.local.layout import Node

CNI_PROGRAMS = "/usr/lib/cni"
CNI_VERSION = "0.4.0"


def root(node: Node) -> Path:
    """Its images and snapshots."""
    return IMAGES / node.name


def component(node: Node) -> Component:
    """The process; writes its configuration first."""
    node.directory.mkdir(parents=True, exist_ok=True)
    root(node).mkdir(parents=True, exist_ok=True)
    config = node.directory / "containerd.toml"
    config.write_text(_configuration(node))
    _write_network(node)
    return Component(
        f"containerd-{node.name}",
        node.command("containerd", f"--config={config}"),
        ready=lambda: succeeds(*_ctr(node), "version", timeout=5),
    )


def has(node: Node, archive: Path) -> bool:
    """Whether the node has the very images of the archive."""
    return images_in(archive).items() <= _imported(node).items()


def import_image(node: Node, archive: Path) -> None:
    """Put the archive's images on the node."""
    run(*_ctr(node), "images", "import", archive)
    record = _record(node)
    temporary = record.with_suffix(".new")
    temporary.write_text(json.dumps({**_imported(node), **images_in(archive)}))
    temporary.rename(record)


def empty(node: Node, *, running: bool, kill: Callable[[], None]) -> None:
    """Remove all containers and keep the images; what can't be emptied is thrown away whole."""
    sockets = _shim_sockets(node)  # known only until the containers are gone
    try:
        if not running:
            raise ClusterError("containerd does not run")
        kill()
        for container in run(*_ctr(node), "containers", "list", "--quiet", timeout=10).split():
            succeeds(*_ctr(node), "tasks", "delete", "--force", container, timeout=10)
            run(*_ctr(node), "containers", "delete", container, timeout=10)
    except ClusterError:
        kill()
        if node.directory.exists():  # else it has been taken down before
            shutil.rmtree(root(node), ignore_errors=True)
    for socket in sockets:
        socket.unlink(missing_ok=True)


def forget(node: Node) -> None:
    """Remove what a machine that was switched off doesn't remember. Its containers are on record, and ended."""
    for socket in _shim_sockets(node):
        socket.unlink(missing_ok=True)
    for folder in ("containerd", "runc"):
        shutil.rmtree(node.directory / folder, ignore_errors=True)


def _shim_sockets(node: Node) -> list[Path]:
    """They lie outside of the node's directory, and a shim that is killed leaves its own there."""
    files = (node.directory / "containerd").glob("io.containerd.runtime.v2.task/*/*/address")
    return [Path(file.read_text().strip().removeprefix("unix://")) for file in files]


def _record(node: Node) -> Path:
    return root(node) / "imported.json"


def _imported(node: Node) -> dict[str, str]:
    """Tag -> configuration of the image that was imported last under it."""
    record = _record(node)
    return dict(json.loads(record.read_text())) if record.exists() else {}


def _ctr(node: Node) -> tuple[str, ...]:
    return ("ctr", f"--address={node.socket}", "--namespace=k8s.io")


def _configuration(node: Node) -> str:
    quoted = {
        "root": root(node),
        "state": node.directory / "containerd",
        "socket": node.socket,
        "opt": node.directory / "opt",
        "runc": node.directory / "runc",
        "cni": node.directory / "cni",
    }
    path = {name: json.dumps(str(value)) for name, value in quoted.items()}
    cri = '[plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = {path["root"]}
state = {path["state"]}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = {path["socket"]}

[plugins."io.containerd.internal.v1.opt"]
  path = {path["opt"]}

{cri}]
  sandbox_image = "{pause.tag()}"
  stream_server_address = "{node.address}"
  # Without CAP_SYS_RESOURCE a sandbox whose score would have to fall doesn't start at all.
  restrict_oom_score_adj = true
  # The pods' network namespaces lie in the state directory, so that they go with it.
  netns_mounts_under_state_dir = true

{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = {path["runc"]}

{cri}.cni]
  bin_dir = "{CNI_PROGRAMS}"
  conf_dir = {path["cni"]}
"""


def _write_network(node: Node) -> None:
    """Pods of a node share a bridge; the machine forwards between bridges and masquerades what leaves."""
    bridge = {
        "type": "bridge",
        "bridge": node.bridge,
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(node.directory / "cni-addresses"),
        },
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    folder = node.directory / "cni"
    folder.mkdir(exist_ok=True)
    conflist = {"cniVersion": CNI_VERSION, "name": f"dtj-{node.name}", "plugins": plugins}
    (folder / "10-dtj.conflist").write_text(json.dumps(conflist, indent=2))
