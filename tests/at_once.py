"""Which tests run at the same time, with --numprocesses: trainings never, nor tests that share what a module made."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

# These take all processors. Ranks wait for each other without pause: with more of them than processors, each of two
# trainings would take more than twice as long.
TRAINING = {
    "trainer": {"test_local_run", "test_programs_horovod", "test_programs_horovod_tf", "test_programs_ps"},
    "cluster": {"test_docs", "test_horovod", "test_own_script", "test_parameter_server", "test_tfjob_script"},
}


# Their tests wait most of the time, and share nothing.
APART = {"test_faults", "test_run_policy", "test_stalled_run"}


class AtOnce(LoadScopeScheduling):
    """Tests of one scope run in one process, one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0])
        if file.stem in TRAINING.get(file.parent.name, ()):
            return "trainings"
        shares = file.parent.name in TRAINING and file.stem not in APART
        return str(file) if shares else nodeid
