"""`python -m dtj.cli.tensorboard_program PARENT …`: TensorBoard, which ends with that process
(on Linux), and does not load TensorFlow even where that is installed.

Loading it takes seconds and hundreds of megabytes, and the scalars of a job need none of it.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from types import ModuleType

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        sys.exit("dtj has ended")
    # By this module TensorBoard tells a build of itself without TensorFlow (tensorboard/compat/__init__.py).
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    runpy.run_module("tensorboard.main", run_name="__main__")
