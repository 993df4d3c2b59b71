"""Parts of a launcher's command that do not work in dtj's launcher."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_AT_COMMAND = r"(?:^|[\s;&|(`'\"])(?:[\w./-]*/)?"
# Patterns of what works in mpi-operator's launcher and not in dtj's, each with a name and a remedy.
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
        "dtj starts ranks by ssh, and dtj's launcher may not call kubectl exec; remove kubexec.sh and kubectl",
    ),
    (
        re.compile(r"discover_hosts\.sh"),
        "discover_hosts.sh",
        "dtj's Horovod is not elastic, and dtj has no such script; take the hosts from /etc/mpi/hostfile",
    ),
    (
        re.compile(r"plm_(?:rsh|ssh)_(?:agent|args)"),
        "plm_rsh_agent, plm_rsh_args",
        "would replace dtj's settings of ssh, and ssh would reach no host; remove these parameters",
    ),
    (
        re.compile(_AT_COMMAND + r"(?:ssh|scp|sftp|rsync|pdsh)(?=\s)"),
        "ssh",
        "ssh needs dtj's settings: write ssh -F /etc/dtj/ssh_config",
    ),
    (
        re.compile(r"mpiexec\.hydra|\bI_MPI_\w+|\bHYDRA_\w+"),
        "MPICH or Intel MPI",
        "dtj starts ranks by Open MPI; build the image with Open MPI",
    ),
    (
        re.compile(r"(?:^|\s)-{1,2}(?:H|host)(?:\s|=)"),
        "-H",
        "names hosts; remove the option: mpirun then takes all workers from the hostfile",
    ),
    (
        re.compile(
            r"(?:^|\s)-{1,2}(?:hostfile|machinefile)[\s=]+(?!\"?(?:/etc/mpi/hostfile|\$\{?OMPI_MCA_orte_default_hostfile))"
        ),
        "--hostfile",
        "the hostfile of dtj is /etc/mpi/hostfile; name that file, or remove the option",
    ),
)
_SSH_BY_DTJ = re.compile(_AT_COMMAND + r"ssh\s+-F\s*/etc/dtj/ssh_config")


def obstacles(words: Sequence[str], key_folder: str | None) -> Iterator[tuple[str, str]]:
    """Yield the parts of a launcher's command that can't work in dtj, each with a remedy.

    key_folder: `sshAuthMountPath`, where mpi-operator mounts the ssh key; None if the job does not set the field.
    """
    text = _SSH_BY_DTJ.sub(" ", " ".join(words))
    for pattern, name, remedy in _MISSING:
        if pattern.search(text):
            yield name, remedy
    if key_folder and key_folder.rstrip("/") + "/" in text:
        yield key_folder, "the key of dtj's pods is in /etc/dtj-ssh; remove the path"
