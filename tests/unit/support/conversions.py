"""The results of a conversion: the job, or the reasons why the conversion is refused."""

from __future__ import annotations

from dtj.api.job import Job, read_job
from dtj.api.validation import faults
from dtj.convert.notes import Conversion


def read(made: Conversion) -> Job:
    assert made.manifest is not None, [str(note) for note in made.notes]
    job = read_job(made.manifest)
    assert faults(job) == []
    return job


def refusals(made: Conversion) -> list[str]:
    assert made.manifest is None
    return [str(note) for note in made.notes if note.refused]
