"""Fetches the data of a built-in program while the program still imports its modules."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.data.layouts import fixed_files
from dtj_trainer.data.staging import stage_ahead

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.launch.settings import Settings

_BUILT_IN, _OTHER_DATA = "dtj_trainer.programs.", "--data"


def begin_staging(settings: Settings) -> None:
    """Fetch the job's data in the background, if a built-in program of this pod is going to read it.

    Other programs are left alone: they read data in their own ways, and their data may be larger than the disk.
    """
    wanted = settings.pod.reads_data and settings.data_uri
    if wanted and _reads_the_jobs_data(settings.config_dir / contract.JOB_FILE):
        threading.Thread(target=stage_ahead, args=(wanted, fixed_files), name="staging", daemon=True).start()


def _reads_the_jobs_data(job_file: Path) -> bool:
    """Return whether the job file names a built-in program without other data."""
    try:
        text = job_file.read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return _BUILT_IN in text and _OTHER_DATA not in text.replace("--data-workers", "")
