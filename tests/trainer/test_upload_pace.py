"""The pace of uploads: gentle beside a program, and full speed after its end."""

import threading

import pytest
from tests.trainer.conftest import pod_variable

from dtj_trainer.artifacts import s3 as paces
from dtj_trainer.artifacts.s3 import CONNECTIONS, CONNECTIONS_BESIDE_PROGRAM, Pace, Reservations
from dtj_trainer.artifacts.sync import PodSync, SyncSettings
from dtj_trainer.launch.settings import SettingsError, read_settings


def test_the_turns_of_all_who_send_make_the_rate():
    rate = Reservations(100.0)
    assert rate.reserve(50, now=10.0) == 0
    assert rate.reserve(100, now=10.0) == pytest.approx(0.5)
    assert rate.reserve(1, now=10.0) == pytest.approx(1.5)
    assert rate.reserve(1, now=60.0) == 0, "time in which nothing was sent is not saved up"


@pytest.mark.parametrize("end", ["hurry", "close"])
def test_who_waits_for_its_turn_goes_on_when_the_program_ends(end):
    pace = Pace(beside_program=True, bytes_per_second=1.0)
    assert pace.connections == CONNECTIONS_BESIDE_PROGRAM
    pace.take(10**6)
    waiting = threading.Thread(target=pace.take, args=(1,), daemon=True)
    waiting.start()
    assert waiting.is_alive()
    getattr(pace, end)()
    waiting.join(30)
    assert not waiting.is_alive()
    assert pace.connections == CONNECTIONS
    pace.take(10**9)  # At once.


def test_without_a_limit_nobody_waits():
    Pace(beside_program=True).take(10**15)
    Pace(bytes_per_second=1.0).take(10**15)


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_a_pod_s_uploads_are_gentle_until_its_program_ends(job_uri, tmp_path, end, monkeypatch):
    made: list[Pace] = []

    class Noted(Pace):
        def __init__(self, **settings: float) -> None:
            super().__init__(**settings)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr("dtj_trainer.artifacts.sync.Pace", Noted)
    settings = SyncSettings(tmp_path, tmp_path, job_uri, "other", 1, "Auto", 3, 1.0)
    sync = PodSync(settings, lambda _: None)
    sync.make_folders()
    sync.start()
    (pace,) = made
    assert pace.connections == CONNECTIONS_BESIDE_PROGRAM
    sync.finish(60, ended=end == "ended")
    assert pace.connections == CONNECTIONS
    sync.close()
    assert pace.closed


def test_the_limit_is_a_setting():
    pod = pod_variable({})
    assert read_settings(pod).upload_bytes_per_second == paces.BYTES_PER_SECOND
    assert read_settings({**pod, "DTJ_UPLOAD_MB_PER_SECOND": "2.5"}).upload_bytes_per_second == 2.5e6
    assert read_settings({**pod, "DTJ_UPLOAD_MB_PER_SECOND": "0"}).upload_bytes_per_second == 0
    with pytest.raises(SettingsError, match="must be a number of megabytes a second"):
        read_settings({**pod, "DTJ_UPLOAD_MB_PER_SECOND": "fast"})
