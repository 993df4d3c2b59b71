"""`python -m dtj.cli.tensorboard_program`: TensorBoard, which does not load TensorFlow even where that is installed.

Loading it takes seconds and hundreds of megabytes, and the scalars of a job need none of it.
"""

from __future__ import annotations

import runpy
import sys
from types import ModuleType

if __name__ == "__main__":
    # By this module TensorBoard tells a build of itself without TensorFlow (tensorboard/compat/__init__.py).
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    runpy.run_module("tensorboard.main", run_name="__main__")
