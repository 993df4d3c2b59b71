"""The start scripts, run by a real shell with stand-ins on the PATH.

* start.sh: dtj-launch, tini, sshd, mpirun, users, the workspace
* rank.sh: the environment through ssh, the exit code
* the configuration of sshd
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from dtj.plan.config_map import script as script_text
from dtj.plan.horovod import SCRIPTS, sshd_config
from dtj_trainer.contract import RANK_EXIT_MARKER, SSH_PORT
from tests.patience import PATIENCE

SHELL = shutil.which("dash") or shutil.which("sh") or "/bin/sh"
SLEEP = shutil.which("sleep")
# Prints its own name and arguments, one a line.
ECHO = '#!/bin/sh\necho "${0##*/}"\nfor word in "$@"; do echo "<$word>"; done\n'


class Pod:
    """A container's file system, as far as the scripts see it."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.workspace = root / "dtj"
        self.config = root / "etc"
        self.scripts = root / "scripts"
        self.passwd = root / "passwd"
        """Not the machine's own: a script may write it."""
        (self.workspace / "run").mkdir(parents=True)
        self.bin.mkdir()
        self.config.mkdir()
        self.scripts.mkdir()
        self.passwd.write_text("root:*:0:0:root:/root:/bin/bash\n")
        self.passwd.chmod(0o444)
        self.environment = {
            "PATH": str(self.bin),
            "DTJ_ROOT": str(self.workspace),
            "DTJ_CONFIG_DIR": str(self.config),
            "DTJ_ROLE": "worker",
            "DTJ_WORLD_SIZE": "4",
            "DTJ_SLOTS_PER_WORKER": "2",
        }
        self.has("hostname", "#!/bin/sh\necho mnist-worker-0\n")
        (self.config / "strategy.sh").write_text(self._here(SCRIPTS["strategy.sh"]))

    def has(self, name: str, text: str = ECHO) -> None:
        file = self.bin / name
        file.write_text(text)
        file.chmod(0o755)

    def borrows(self, *names: str) -> None:
        """The machine's own programs."""
        for name in names:
            (self.bin / name).symlink_to(shutil.which(name) or name)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.scripts / script).write_text(self._here(script_text(script)))
        return subprocess.run(
            [SHELL, self.scripts / script, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=20 * PATIENCE,
        )

    def of_another_strategy(self) -> None:
        """A strategy that needs no more than one process in each pod."""
        (self.config / "strategy.sh").unlink()

    def _here(self, text: str) -> str:
        return text.replace("/etc/passwd", str(self.passwd))

    @property
    def saved(self) -> Path:
        return self.workspace / "run" / "environment"


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def in_mpi(size: str = "4", local: str = "2", rank: str = "3") -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local,
        "OMPI_COMM_WORLD_RANK": rank,
    }


# --- start.sh -------------------------------------------------------------------------------------


def test_dtj_launch_does_the_work_where_the_image_has_it(pod: Pod) -> None:
    pod.has("dtj-launch")
    pod.has("sshd")

    done = pod.run("start.sh", "python", "train.py", "a b", "")

    assert done.stdout.splitlines() == [
        "dtj-launch",
        "<worker>",
        "<-->",
        "<python>",
        "<train.py>",
        "<a b>",
        "<>",
    ]


def test_tini_comes_first_where_the_image_has_it(pod: Pod) -> None:
    pod.has("dtj-launch")
    pod.has("tini")

    done = pod.run("start.sh", "python", DTJ_ROLE="launcher")

    assert done.stdout.splitlines() == ["tini", "<-->", "<dtj-launch>", "<launcher>", "<-->", "<python>"]


def test_a_worker_of_a_plain_image_runs_sshd(pod: Pod) -> None:
    pod.has("sshd")

    done = pod.run("start.sh")

    assert done.stdout.splitlines() == ["sshd", "<-De>", "<-f>", f"<{pod.config}/sshd_config>"]


def test_sshd_is_run_by_its_whole_path_as_it_asks_for(pod: Pod) -> None:
    pod.has("sshd", '#!/bin/sh\necho "$0"\n')

    assert pod.run("start.sh").stdout.strip() == str(pod.bin / "sshd")


def test_an_image_without_a_user_of_that_uid_says_so_before_ssh_fails(pod: Pod) -> None:
    pod.has("id", '#!/bin/sh\n[ "$1" = -u ] && echo 1000\n')
    pod.has("sshd")

    done = pod.run("start.sh")

    assert done.returncode == 78
    assert "the image has no user with uid 1000" in done.stderr


def _id(passwd: Path, uid: int) -> str:
    """An `id` of a user of group 0 that knows the names in a passwd file."""
    return f"""#!/bin/sh
case "$1" in
-u) echo {uid} ;;
-g) echo 0 ;;
-un) while IFS=: read -r name _ entry _; do [ "$entry" = {uid} ] && echo "$name" && exit; done < {passwd}; exit 1 ;;
esac
"""


@pytest.mark.parametrize("horovod", [True, False])
def test_a_user_that_the_image_does_not_know_is_added_where_the_image_allows_it(
    pod: Pod, horovod: bool
) -> None:
    if not horovod:
        pod.of_another_strategy()
    pod.has("id", _id(pod.passwd, 1000670000))
    pod.has("dtj-launch")
    pod.passwd.chmod(0o664)

    for _ in range(2):  # A container that is restarted keeps its entry.
        assert pod.run("start.sh", "python").returncode == 0

    added = f"dtj-1000670000:*:1000670000:0::{pod.workspace}:/bin/sh"
    assert pod.passwd.read_text().splitlines() == ["root:*:0:0:root:/root:/bin/bash", added]


def test_a_run_of_this_machine_adds_no_user_to_it(pod: Pod) -> None:
    pod.has("id", _id(pod.passwd, 1000670000))
    pod.passwd.chmod(0o664)

    assert pod.run("start.sh", "python", DTJ_LOCAL_RUN="1").returncode == 78

    assert "1000670000" not in pod.passwd.read_text()


def test_a_user_without_a_shell_is_told_before_sshd_refuses_it(pod: Pod) -> None:
    """As CRI-O adds an unknown uid to a passwd file that group 0 may not write."""
    pod.has("id", _id(pod.passwd, 1000670000))
    pod.has("sshd")
    pod.passwd.chmod(0o664)
    with pod.passwd.open("a") as file:
        file.write("1000670000:x:1000670000:0:1000670000 user:/dtj:/sbin/nologin\n")

    done = pod.run("start.sh")

    assert done.returncode == 78
    assert "user 1000670000 (uid 1000670000) has no shell, which sshd needs" in done.stderr
    assert pod.run("start.sh", DTJ_LOCAL_WORKERS="/x").returncode == 0, "no ssh on this machine"


def test_a_worker_without_sshd_says_what_to_install(pod: Pod) -> None:
    # The script looks in the system's folders too: here they are taken out of it.
    text = SCRIPTS["strategy.sh"].replace("/usr/sbin:/usr/local/sbin", "/nowhere")
    (pod.config / "strategy.sh").write_text(text)

    done = pod.run("start.sh")

    assert done.returncode == 127
    assert done.stderr == (
        "dtj: the image has no sshd, which a Horovod worker needs: install openssh-server\n"
    )


def test_a_launcher_of_a_plain_image_runs_mpirun_over_all_ranks(pod: Pod) -> None:
    pod.has("mpirun")

    done = pod.run("start.sh", "python", "train.py", "--name=a b", DTJ_ROLE="launcher")

    words = done.stdout.splitlines()
    assert words[:3] == ["mpirun", "<-np>", "<4>"]
    assert words[-5:] == ["</bin/sh>", f"<{pod.config}/rank.sh>", "<python>", "<train.py>", "<--name=a b>"]


def test_the_mpirun_that_the_job_names_runs_whatever_is_on_the_path(pod: Pod, tmp_path: Path) -> None:
    pod.has("mpirun", "#!/bin/sh\necho another\n")
    named = tmp_path / "openmpi" / "mpirun"
    named.parent.mkdir()
    named.write_text('#!/bin/sh\necho "$0"\n')
    named.chmod(0o755)

    done = pod.run("start.sh", "python", DTJ_ROLE="launcher", DTJ_MPIRUN=str(named))

    assert done.stdout == f"{named}\n"


def test_an_image_without_the_mpirun_that_the_job_names_says_so(pod: Pod) -> None:
    pod.has("mpirun")

    done = pod.run("start.sh", "python", DTJ_ROLE="launcher", DTJ_MPIRUN="/opt/none/mpirun")

    assert done.returncode == 127
    assert "the image has no /opt/none/mpirun" in done.stderr
    assert "set DTJ_MPIRUN to where its mpirun is" in done.stderr


def _answers_after(times: int) -> str:
    """An ssh whose hosts refuse so often, each, before they let it in."""
    return f"""#!/bin/sh
for word in "$@"; do case $word in mnist-*) host=$word;; esac; done
echo x >> "$DTJ_ROOT/$host"
[ $(wc -l < "$DTJ_ROOT/$host") -gt {times} ]
"""


def test_a_launcher_made_with_the_workers_waits_until_each_lets_it_in(pod: Pod) -> None:
    pod.borrows("date", "sleep", "wc")
    pod.has("mpirun")
    pod.has("ssh", _answers_after(1))
    (pod.config / "hostfile").write_text("mnist-worker-0 slots=2\nmnist-worker-1 slots=2\n")

    done = pod.run("start.sh", "python", "train.py", DTJ_ROLE="launcher", DTJ_LAUNCHER_WAITS="yes")

    assert done.stdout.startswith("mpirun\n")
    asked = [(pod.workspace / f"mnist-worker-{index}").read_text().count("x") for index in (0, 1)]
    assert asked == [2, 2]


def test_a_launcher_does_not_wait_for_ever_for_a_worker(pod: Pod) -> None:
    pod.borrows("date", "sleep", "wc")
    pod.has("mpirun")
    pod.has("ssh", _answers_after(1000))
    (pod.config / "hostfile").write_text("mnist-worker-0 slots=2\n")

    waits = {"DTJ_LAUNCHER_WAITS": "yes", "DTJ_PEER_TIMEOUT_SECONDS": "1"}
    done = pod.run("start.sh", "python", "train.py", DTJ_ROLE="launcher", **waits)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "dtj: mnist-worker-0 does not answer ssh\n"


def test_a_launcher_without_mpirun_says_what_to_install(pod: Pod) -> None:
    done = pod.run("start.sh", "python", DTJ_ROLE="launcher")

    assert done.returncode == 127
    assert (
        done.stderr == "dtj: the image has no mpirun, which a Horovod launcher needs: install openmpi-bin\n"
    )


def test_the_environment_is_saved_for_nobody_else_to_read(pod: Pod) -> None:
    pod.has("sshd")

    pod.run("start.sh", AWS_SECRET_ACCESS_KEY="secret")

    assert "secret" in pod.saved.read_text()
    assert stat.S_IMODE(pod.saved.stat().st_mode) == 0o600


def test_files_that_the_program_writes_have_the_usual_mode(pod: Pod) -> None:
    pod.has("sshd", "#!/bin/sh\numask\n")

    assert pod.run("start.sh").stdout.strip() == "0022"


def test_a_workspace_that_can_not_be_written_is_a_fault_of_the_configuration(pod: Pod) -> None:
    pod.has("sshd")

    done = pod.run("start.sh", DTJ_ROOT="/nowhere")

    assert done.returncode == 78
    assert "/nowhere/run/environment" in done.stderr


@pytest.mark.parametrize("tini", [True, False])
def test_other_strategies_run_the_program_as_the_pods_one_process(pod: Pod, tini: bool) -> None:
    """No ssh: neither a user's name nor the saved environment has to be there."""
    pod.has("id", '#!/bin/sh\n[ "$1" = -u ] && echo 1000\n')
    pod.has("dtj-launch")
    pod.of_another_strategy()
    if tini:
        pod.has("tini")

    done = pod.run("start.sh", "python", "a b", DTJ_ROOT="/nowhere")

    before = ["tini", "<-->", "<dtj-launch>"] if tini else ["dtj-launch"]
    assert done.stdout.splitlines() == [*before, "<replica>", "<-->", "<python>", "<a b>"]


@pytest.mark.parametrize("tini", [True, False])
def test_other_strategies_in_a_plain_image(pod: Pod, tini: bool) -> None:
    pod.has("python")
    pod.of_another_strategy()
    if tini:
        pod.has("tini")

    done = pod.run("start.sh", "python", "a b", DTJ_ROLE="ps")

    assert done.stdout.splitlines() == [*(["tini", "<-->", "<python>"] if tini else ["python"]), "<a b>"]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (f"echo up; exec {SLEEP} 60", -15),
        (f"trap 'echo bye; exit 7' TERM; echo up; while :; do {SLEEP} 0.1; done", 7),
    ],
)
def test_a_program_without_tini_is_told_to_end_and_its_exit_code_passes(
    pod: Pod, program: str, code: int
) -> None:
    pod.of_another_strategy()
    words = [SHELL, "-c", script_text("start.sh"), "start.sh", SHELL, "-c", program]
    with subprocess.Popen(words, env=pod.environment, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "up\n"
        started.terminate()
        assert started.wait(20 * PATIENCE) == (code if code > 0 else 128 - code)


# --- rank.sh --------------------------------------------------------------------------------------

AWKWARD = "it's \"quoted\" $HOME `date` \\ back\nsecond line\ttab  two spaces 'ü' ; rm -rf x"


def test_the_environment_comes_through_ssh_as_it_was(pod: Pod) -> None:
    pod.has("sshd")
    pod.has("show", '#!/bin/sh\nprintf "%s" "$AWKWARD"\n')
    pod.run("start.sh", AWKWARD=AWKWARD)
    session = {key: pod.environment[key] for key in ("PATH", "DTJ_ROOT")}
    pod.environment = session

    done = pod.run("rank.sh", "show", **in_mpi())

    assert done.stdout == AWKWARD
    assert done.returncode == 0


def test_what_mpirun_gave_the_rank_stays(pod: Pod) -> None:
    pod.has("sshd")
    pod.has("show", '#!/bin/sh\necho "$OMPI_COMM_WORLD_RANK $DTJ_ROLE"\n')
    pod.run("start.sh")

    assert pod.run("rank.sh", "show", **in_mpi(rank="2")).stdout.strip() == "2 worker"


def test_the_round_that_mpirun_gives_reaches_the_rank(pod: Pod) -> None:
    pod.has("sshd")
    pod.has("show", '#!/bin/sh\necho "round ${DTJ_ROUND:-none}"\n')
    pod.run("start.sh")

    assert pod.run("rank.sh", "show", **in_mpi(), DTJ_ROUND="3").stdout.strip() == "round 3"


@pytest.mark.parametrize(("rank", "worker"), [("1", "worker-0"), ("2", "worker-1")])
@pytest.mark.parametrize("variables", ["OMPI_COMM_WORLD", "HOROVOD"])
def test_a_rank_of_one_machine_finds_its_workers_environment(
    tmp_path: Path, variables: str, rank: str, worker: str
) -> None:
    launcher = Pod(tmp_path / "launcher-0")
    launcher.has("show", '#!/bin/sh\necho "$DTJ_ROLE $DTJ_ROOT"\n')
    local = {"DTJ_LOCAL_WORKERS": f"{tmp_path}/worker-"}
    for index in range(2):
        root = tmp_path / f"worker-{index}"
        (root / "run").mkdir(parents=True)
        (root / "run" / "environment").write_text(f"export DTJ_ROLE='worker'\nexport DTJ_ROOT='{root}'\n")
    started = {f"{variables}_RANK": rank, f"{variables}_SIZE": "4", f"{variables}_LOCAL_SIZE": "4"}

    done = launcher.run("rank.sh", "show", DTJ_ROLE="launcher", **local, **started)

    assert done.stdout == f"worker {tmp_path}/{worker}\n"
    less = launcher.run("rank.sh", "show", **local, **started | {f"{variables}_SIZE": "3"})
    assert less.returncode == 78


def test_a_rank_runs_under_dtj_launch_where_the_image_has_it(pod: Pod) -> None:
    pod.has("dtj-launch")

    done = pod.run("rank.sh", "python", "a b", **in_mpi())

    assert done.stdout.splitlines() == ["dtj-launch", "<rank>", "<-->", "<python>", "<a b>"]


def test_the_exit_code_of_the_program_is_the_ranks(pod: Pod) -> None:
    pod.has("program", "#!/bin/sh\nexit 5\n")

    assert pod.run("rank.sh", "program", **in_mpi()).returncode == 5


@pytest.mark.parametrize(
    ("mpi", "role", "message"),
    [
        (in_mpi(size="1", local="1"), "worker", "4 ranks were asked for, mpirun started 1"),
        (
            in_mpi(local="4"),
            "worker",
            "2 ranks a host were asked for, mpirun started 4 on mnist-worker-0",
        ),
        (in_mpi(), "launcher", "mpirun started a rank on mnist-worker-0, which is no worker"),
        ({}, "worker", "4 ranks were asked for, mpirun started 1"),
    ],
    ids=["too few", "all on one host", "on the launcher", "without mpirun"],
)
def test_a_job_never_trains_on_less_than_was_asked_for(
    pod: Pod, mpi: dict[str, str], role: str, message: str
) -> None:
    pod.has("program")

    done = pod.run("rank.sh", "program", DTJ_ROLE=role, **mpi)

    assert done.returncode == 78
    assert done.stderr == f"dtj: {message}\n"
    (line,) = done.stdout.splitlines()
    assert line.startswith(RANK_EXIT_MARKER)
    assert json.loads(line.removeprefix(RANK_EXIT_MARKER)) == {
        "class": "WorldSizeMismatch",
        "message": message,
        "rank": int(mpi.get("OMPI_COMM_WORLD_RANK", 0)),
        "host": "mnist-worker-0",
        "exitCode": 78,
    }


# --- sshd's configuration -------------------------------------------------------------------------


def test_sshd_takes_no_passwords_and_listens_where_the_contract_says() -> None:
    assert f"Port {SSH_PORT}\n" in sshd_config("key")
    assert "PasswordAuthentication no\n" in sshd_config("key")
    assert "KbdInteractiveAuthentication no\n" in sshd_config("key")


def test_sshd_forwards_nothing() -> None:
    """Neither TCP, X11 nor an agent, nor sockets; a tunnel needs a word that is not there."""
    assert "DisableForwarding yes\n" in sshd_config("key")
    assert "PermitTunnel" not in sshd_config("key")
