"""Parts of a launcher's own command that can't work with dtj's pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_AT_COMMAND = r"(?:^|[\s;&|(`'\"])(?:[\w./-]*/)?"
# What works in mpi-operator's launcher and not in dtj's.
_MISSING = (
    (
        re.compile(_AT_COMMAND + r"horovodrun(?=\s|$)"),
        "horovodrun",
        "calls ssh without dtj's settings; write the command as a list of words that begins with "
        "horovodrun, or use mpirun",
    ),
    (
        re.compile(r"kubexec\.sh|" + _AT_COMMAND + r"kubectl(?=\s|$)"),
        "kubectl",
        "dtj starts ranks by ssh, and its launcher may not call kubectl exec; remove kubexec.sh and kubectl",
    ),
    (
        re.compile(r"discover_hosts\.sh"),
        "discover_hosts.sh",
        "dtj's Horovod is not elastic, and dtj has no such script; take the hosts from /etc/mpi/hostfile",
    ),
    (
        re.compile(r"plm_(?:rsh|ssh)_(?:agent|args)"),
        "plm_rsh_agent, plm_rsh_args",
        "would replace dtj's settings of ssh, and ssh would reach no host; remove them",
    ),
    (
        re.compile(_AT_COMMAND + r"(?:ssh|scp|sftp|rsync|pdsh)(?=\s)"),
        "ssh",
        "dtj's ssh needs its settings: write ssh -F /etc/dtj/ssh_config",
    ),
    (
        re.compile(r"mpiexec\.hydra|\bI_MPI_\w+|\bHYDRA_\w+"),
        "MPICH or Intel MPI",
        "dtj starts ranks by Open MPI; build the image with Open MPI",
    ),
    (
        re.compile(r"(?:^|\s)-{1,2}(?:H|host)(?:\s|=)"),
        "-H",
        "names hosts; remove the option, and mpirun takes all workers from the hostfile",
    ),
    (
        re.compile(
            r"(?:^|\s)-{1,2}(?:hostfile|machinefile)[\s=]+(?!\"?(?:/etc/mpi/hostfile|\$\{?OMPI_MCA_orte_default_hostfile))"
        ),
        "--hostfile",
        "the list of dtj's workers is /etc/mpi/hostfile; name that file, or remove the option",
    ),
)
_SSH_BY_DTJ = re.compile(_AT_COMMAND + r"ssh\s+-F\s*/etc/dtj/ssh_config")


def obstacles(words: Sequence[str], key_folder: str | None) -> Iterator[tuple[str, str]]:
    """The parts of a launcher's own command that can't work in dtj: the name of each, and what to do.

    key_folder: `sshAuthMountPath`, where mpi-operator mounts the key; None where the job does not set the field.
    """
    text = _SSH_BY_DTJ.sub(" ", " ".join(words))
    for pattern, name, remedy in _MISSING:
        if pattern.search(text):
            yield name, remedy
    if key_folder and key_folder.rstrip("/") + "/" in text:
        yield key_folder, "the key of dtj's pods is in /etc/dtj-ssh; remove the path"
