"""A Docker engine for builds: the one that runs, or a temporary one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from host import CACHE, BuildError, follow, need_packages, one_at_a_time, run, say

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE = CACHE / "docker"
"""Layers of the temporary engine, kept for the next build."""
KEEP_LAYERS = "12GB"
"""Twice the size of the layers of one build of all images."""
WEIGHT_OF_BUILDS = 8 * 1024
"""That of eight processes."""
START_SECONDS = 60
ANSWER_SECONDS = 60
PULL_SECONDS = 3600
"""Images for GPUs have several GB."""


class Engine:
    """The `docker` command against one engine."""

    def __init__(self, docker: str, host: str | None) -> None:
        self._command = [docker, *(["--host", host] if host else [])]
        self.own = host is not None

    def run(self, *arguments: str | Path) -> str:
        """Run `docker ARGUMENTS` and return what it printed; raises BuildError when it fails."""
        return run([*self._command, *arguments])

    def has(self, image: str) -> bool:
        """Return whether the engine has the image."""
        return self.succeeds("image", "inspect", image)

    def id_of(self, image: str) -> str | None:
        """Return the image's id (`sha256:…`); None if the engine does not have the image."""
        try:
            return self.run("image", "inspect", "--format", "{{.Id}}", image).strip()
        except BuildError:
            return None

    def pull(self, image: str, *, seconds: float = PULL_SECONDS) -> str | None:
        """Pull the image; return None after a success, otherwise docker's last line."""
        try:
            done = subprocess.run(
                [*self._command, "pull", "--quiet", image],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=seconds,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s"
        if done.returncode == 0:
            return None
        return (done.stderr.strip().splitlines() or [f"docker pull ended with {done.returncode}"])[-1]

    def build(
        self,
        context: Path,
        dockerfile: Path,
        target: str | None,
        tag: str,
        args: dict[str, str],
        labels: dict[str, str] | None = None,
    ) -> None:
        """Run `docker build`, and print each step. Raises BuildError with docker's last lines after a failure."""
        command = [*self._command, "build", "--progress=plain", "--network=host", "--tag", tag]
        command += ["--file", str(dockerfile), *(["--target", target] if target else [])]
        for name, value in args.items():
            command += ["--build-arg", f"{name}={value}"]
        for name, value in (labels or {}).items():
            command += ["--label", f"{name}={value}"]
        printed: set[str] = set()

        def on_line(line: str) -> None:
            step = re.match(r"#\d+ (\[.*\d+/\d+\] .*)", line)
            if step and step[1] not in printed:
                printed.add(step[1])
                say(f"  {re.sub(r'(--mount=[^ ]+)? +', ' ', step[1])[:110]}")

        follow([*command, context], on_line, env={"DOCKER_BUILDKIT": "1"}, what=f"docker build of {tag}")

    def succeeds(self, *arguments: str) -> bool:
        """Return whether `docker ARGUMENTS` succeeds within ANSWER_SECONDS."""
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=ANSWER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """Yield the running engine, or a temporary one.

    Raises BuildError, which names the remedy, if no engine runs and none can be started.
    """
    docker = shutil.which("docker")
    if docker:
        found = Engine(docker, None)
        if found.succeeds("version"):
            yield found
            return
    need_packages({"/usr/sbin/dockerd": "docker.io", "containerd": "containerd", "runc": "runc"})
    if os.geteuid() != 0:
        raise BuildError(
            "no Docker engine answers: start one, or run this as root so that one can be started"
        )
    with one_at_a_time("docker-engine"), _own_engine() as own:
        yield own


@contextlib.contextmanager
def _own_engine() -> Iterator[Engine]:
    """Start containerd and dockerd with their own folders and sockets, without network and firewall rules.

    Without its own containerd, dockerd would use one that runs already, such as a cluster's.
    """
    run_folder = Path(tempfile.mkdtemp(prefix="dtj-docker-", dir="/run"))
    with contextlib.ExitStack() as stack:
        stack.callback(_clean, run_folder, _cgroups())
        _give_weight_to_builds()
        containerd_socket = run_folder / "containerd.sock"
        config = run_folder / "containerd.toml"
        config.write_text(
            "version = 2\n"
            f'root = "{STATE / "containerd"}"\n'
            f'state = "{run_folder / "containerd"}"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{containerd_socket}"\n'
        )
        say("starting a Docker engine for this build")
        _start(stack, ["containerd", "--config", config], run_folder, containerd_socket)
        docker_socket = run_folder / "docker.sock"
        command: list[str | Path] = [
            "/usr/sbin/dockerd",
            "--host",
            f"unix://{docker_socket}",
            "--containerd",
            containerd_socket,
        ]
        command += ["--data-root", STATE / "data", "--exec-root", run_folder / "exec"]
        command += ["--pidfile", run_folder / "docker.pid", "--config-file", _configuration(run_folder)]
        command += ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
        _start(stack, command, run_folder, docker_socket)
        # Debian's client includes BuildKit and needs no plugin.
        own = Engine("/usr/bin/docker", f"unix://{docker_socket}")
        deadline = time.monotonic() + START_SECONDS
        while not own.succeeds("version"):
            if time.monotonic() > deadline:
                raise BuildError(f"dockerd doesn't answer:\n{_tail(run_folder / 'dockerd.log')}")
            time.sleep(0.1)
        yield own


def _cgroups() -> set[Path]:
    """Return the cgroups that dockerd and its builder create at the top of each hierarchy."""
    top = Path("/sys/fs/cgroup")
    return {path for pattern in ("docker", "*/docker") for path in top.glob(pattern)}


def _give_weight_to_builds() -> None:
    """Give the cgroup of all build steps the weight of several processes.

    A cgroup has the weight of one process by default. On a busy machine, a build would take several times as long.
    """
    group = Path("/sys/fs/cgroup/cpu/docker")  # Only version 1 has the folder `cpu`.
    with contextlib.suppress(OSError):
        group.mkdir(exist_ok=True)
        (group / "cpu.shares").write_text(str(WEIGHT_OF_BUILDS))


def _clean(run_folder: Path, cgroups_before: set[Path]) -> None:
    """Remove what a stopped engine leaves: mounts below its folder, the folder, empty cgroups."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        point = line.split()[1]
        if point.startswith((f"{run_folder}/", f"{STATE}/")):
            subprocess.run(["umount", "--lazy", point], check=False)
    shutil.rmtree(run_folder, ignore_errors=True)
    for cgroup in _cgroups() - cgroups_before:
        for path in sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            cgroup.rmdir()


def _configuration(folder: Path) -> Path:
    """Write a configuration that replaces the machine's, and limits the size of old layers."""
    file = folder / "daemon.json"
    file.write_text(json.dumps({"builder": {"gc": {"enabled": True, "defaultKeepStorage": KEEP_LAYERS}}}))
    return file


def _start(stack: contextlib.ExitStack, command: list[str | Path], folder: Path, socket: Path) -> None:
    name = Path(command[0]).name
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stack.callback(_stop, process)
    deadline = time.monotonic() + START_SECONDS
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BuildError(f"{name} didn't start:\n{_tail(log)}")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
