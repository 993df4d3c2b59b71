"""Order and exclusion of tests under --numprocesses: trainings never run at once, nor tests of one module."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

# These tests run one after another, as each uses all processors. The ranks of MPI wait for each other without pause:
# when there are more ranks than processors, each of two trainings takes more than twice as long.
TRAINING = {
    "trainer": {
        "test_local_run",
        "test_programs_horovod",
        "test_programs_horovod_tf",
        "test_programs_ps",
        "test_programs_torch",
    },
    "chaos": set(),
    "cluster": {"test_docs", "test_horovod", "test_own_script", "test_tfjob_script"},
}
# Their tests share nothing, and wait most of the time. Those of test_histories compute, in `make test-histories` for
# minutes each.
APART = {"test_faults", "test_histories", "test_run_policy", "test_stalled_run"}
# Begun late, these would still run when all others are through.
LONG = APART | {
    "test_bad_jobs",
    "test_local_scripts",
    "test_matrix",
    "test_parameter_server",
    "test_parameter_server_kills",
    "test_suspension",
    "test_tensorboard",
    "test_torch_distributed",
    "test_ui",
}


def turn(file: PurePath) -> int:
    """When the tests of a file have their turn: trainings first, then what takes long, then the rest."""
    if file.stem in TRAINING.get(file.parent.name, ()):
        return 0
    return 1 if file.stem in LONG else 2


class AtOnce(LoadScopeScheduling):
    """Tests of one scope run in one process, one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0])
        if turn(file) == 0:
            return "trainings"
        shares = file.parent.name in TRAINING and file.stem not in APART
        if file.stem == "test_stub_training":  # Its ranks meet at a fixed port.
            shares = True
        return str(file) if shares else nodeid
