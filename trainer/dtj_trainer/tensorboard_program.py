"""`python -m dtj_trainer.tensorboard_program PARENT …`: TensorBoard for a job's event files, which ends with that
process (on Linux), and does not load TensorFlow even where that is installed.

Loading it takes seconds and hundreds of megabytes, and the scalars of a job need none of it. What follows PARENT is
for TensorBoard: --logdir, --bind_all, --port.
"""

from __future__ import annotations

import os
import runpy
import sys
from types import ModuleType

from dtj_trainer.parent_death import die_with_parent

# Several parts of one run grow at a time: those of the chief and of the evaluator.
_FLAGS = ("--reload_interval=5", "--reload_multifile=true")

if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    sys.argv += _FLAGS
    if sys.platform.startswith("linux"):
        import resource

        die_with_parent()()
        # It keeps every part open: 1024, a usual limit, are a week's parts of two writers.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.getppid() != parent:
        sys.exit("the process that wanted TensorBoard has ended")
    # By this module TensorBoard tells a build of itself without TensorFlow (tensorboard/compat/__init__.py).
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    runpy.run_module("tensorboard.main", run_name="__main__")
