"""`python -m dtj_trainer.tensorboard_program PARENT …`: a TensorBoard that ends with the process PARENT (on Linux),
and does not load TensorFlow even if it is installed.

Loading TensorFlow takes seconds and hundreds of megabytes, and a job's scalars don't need it. The arguments after
PARENT are TensorBoard's: --logdir, --bind_all, --port.
"""

from __future__ import annotations

import os
import runpy
import sys
from types import ModuleType

from dtj_trainer.parent_death import die_with_parent

# Let TensorBoard read all event files of a run repeatedly: the files of the chief and of the evaluator both grow.
_FLAGS = ("--reload_interval=5", "--reload_multifile=true")

if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    sys.argv += _FLAGS
    if sys.platform.startswith("linux"):
        import resource

        die_with_parent()()
        # TensorBoard keeps every part open. Two writers reach the usual limit of 1024 files within a week.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.getppid() != parent:
        sys.exit("the parent process of TensorBoard has ended")
    # With this module present, TensorBoard runs without TensorFlow (tensorboard/compat/__init__.py).
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    runpy.run_module("tensorboard.main", run_name="__main__")
