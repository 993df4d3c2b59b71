"""What the programs of a pod use.

* whose processes are whose; figures of an interval; intervals
* lines of JSON, TensorBoard's scalars, Prometheus' gauges
* cgroups of both versions; GPUs, and a driver that does not answer
* real processes, and a pod of two ranks from dtj-launch to the bucket
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.trainer.conftest import REPOSITORY, get_json, get_text, until

from dtj.local.store_keeper import free_ports
from dtj_trainer import contract
from dtj_trainer.artifacts.store import Store
from dtj_trainer.launch.cgroups import Usage, usage
from dtj_trainer.launch.settings import Settings, read_settings
from dtj_trainer.launch.status_server import prometheus_text
from dtj_trainer.utilisation.figures import (
    Recorder,
    Sample,
    Sampler,
    gauges,
    pause,
    row,
    sample,
    scalars,
    totals,
)
from dtj_trainer.utilisation.readings import (
    Counters,
    DiskReading,
    GpuReading,
    ProcessReading,
    ProgramReading,
    summed,
)
from dtj_trainer.utilisation.sources import Gpus, Sources, by_program, no_rank

# --- processes ---------------------------------------------------------------------------------


def test_a_rank_has_all_its_descendants() -> None:
    children = {1: [10, 20], 10: [11], 11: [12], 20: [21], 30: [31]}
    found = by_program({"0": 10, "1": 20}, children, lambda _: "7")
    assert found == {"0": [10, 11, 12], "1": [20, 21]}


def test_ranks_that_a_command_starts_are_programs_of_their_own() -> None:
    """torchrun, 10, has a helper and two ranks, of which one has a data worker with its environment."""
    children = {10: [11, 12, 13], 12: [14]}
    ranks = {12: "4", 13: "5", 14: "4"}
    found = by_program({"worker-2": 10}, children, ranks.get)
    assert found == {"worker-2": [10, 11], "4": [12, 14], "5": [13]}
    assert by_program({"ps-0": 10}, children, no_rank) == {"ps-0": [10, 11, 12, 13, 14]}


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    own = ProcessReading(cpu_seconds=2.0, rss=100, pss=80, read=5, written=7)
    child = ProcessReading(cpu_seconds=0.5, rss=60, pss=None, read=1, written=0)
    assert summed(10, [own, child]) == ProgramReading(10, 2, 2.5, 160, None, 6, 7)
    assert summed(10, []) is None


# --- figures -----------------------------------------------------------------------------------

BEFORE = Counters(
    100.0, {"0": ProgramReading(10, 2, 50.0, 1000, 900, 10_000, 500)}, Usage(60.0, 4.0, 2000, 8000)
)
NOW = Counters(
    110.0,
    {"0": ProgramReading(10, 3, 65.0, 1500, 1200, 10_000, 2500)},
    Usage(80.0, 4.0, 3000, 8000),
    DiskReading(5, 50),
    {"0": GpuReading(0.93, 40, 80, 312.5)},
)


def test_figures_are_those_of_the_interval() -> None:
    found = sample(BEFORE, NOW)
    program = found.programs["0"]
    assert (program.cores, program.read, program.written) == (1.5, 0, 2000)
    assert (program.processes, program.rss, program.pss) == (3, 1500, 1200)
    assert (found.seconds, found.cores, found.cpu_limit, found.memory) == (10.0, 2.0, 4.0, 3000)


def test_a_program_that_began_in_the_interval_counts_from_its_begin() -> None:
    for before in (replace(BEFORE, programs={}), replace(BEFORE, programs={"0": replace(PROGRAM, pid=9)})):
        assert sample(before, NOW).programs["0"].cores == 6.5


PROGRAM = NOW.programs["0"]


def test_counters_that_fall_or_are_not_known_give_no_negative_figure() -> None:
    """As where a process ended for which none of the others waited."""
    fallen = replace(NOW, programs={"0": replace(PROGRAM, cpu_seconds=1.0, read=None, written=3)})
    program = sample(BEFORE, fallen).programs["0"]
    assert (program.cores, program.read, program.written) == (0.0, None, 0)


@pytest.mark.bound(
    "agent",
    "A job that runs for long",
    "Rows of utilisation",
    "Intervals grow to a minute: 11,000 rows a week",
)
def test_intervals_are_short_at_first_and_few_in_a_week() -> None:
    assert [pause(age, 0.0) for age in (0.0, 61.0, 3600.0, 7200.0, 1e6)] == [5.0, 15.0, 15.0, 30.0, 60.0]
    age, looks = 0.0, 0
    while age < 7 * 86_400:
        age += pause(age, 0.0)
        looks += 1
    assert 10_000 < looks < 11_000


def test_a_costly_reading_makes_intervals_longer() -> None:
    assert pause(0.0, 0.3) == pytest.approx(150.0)  # 0.2 % of a processor


# --- where the figures go ----------------------------------------------------------------------


def test_a_line_has_what_is_known() -> None:
    found = row(sample(BEFORE, NOW), time="2026-01-01T00:00:00.000Z", pod="worker-0", attempt=2)
    assert json.loads(json.dumps(found)) == {
        "time": "2026-01-01T00:00:00.000Z",
        "pod": "worker-0",
        "attempt": 2,
        "seconds": 10.0,
        "programs": {
            "0": {
                "cpuCores": 1.5,
                "processes": 3,
                "rssBytes": 1500,
                "pssBytes": 1200,
                "readBytes": 0,
                "writtenBytes": 2000,
            }
        },
        "cpuCores": 2.0,
        "cpuLimit": 4.0,
        "memoryBytes": 3000,
        "memoryLimitBytes": 8000,
        "diskUsedBytes": 5,
        "diskBytes": 50,
        "gpus": {"0": {"utilisation": 0.93, "memoryUsedBytes": 40, "memoryBytes": 80, "powerWatts": 312.5}},
    }
    bare = sample(Counters(0.0, {}), Counters(1.0, {"ps-0": replace(PROGRAM, pss=None)}))
    assert set(row(bare, time="", pod="ps-0", attempt=1)["programs"]["ps-0"]) == {  # type: ignore[index]
        *("cpuCores", "processes", "rssBytes", "readBytes", "writtenBytes")
    }


def test_the_page_shows_a_line_with_all_fields() -> None:
    page = (REPOSITORY / "docs/utilisation.md").read_text()
    shown = json.loads(page.split("```json\n")[1].split("```")[0])
    made: Any = row(sample(BEFORE, NOW), time="", pod="worker-0", attempt=1)
    assert shown.keys() == made.keys()
    assert shown["programs"]["0"].keys() == made["programs"]["0"].keys()
    assert shown["gpus"]["0"].keys() == made["gpus"]["0"].keys()
    assert {f"`{name}`" for name in made["programs"]["0"] if name != "processes"} <= set(
        re.findall(r"`\w+`", page)
    )


def test_prometheus_gets_each_name_once_with_all_its_series() -> None:
    two = replace(NOW, programs={"0": PROGRAM, 'a"b': PROGRAM})
    lines = prometheus_text({"dtj_step": 3.0} | gauges(sample(BEFORE, two))).splitlines()
    assert lines[:2] == ["# TYPE dtj_step gauge", "dtj_step 3.0"]
    at = lines.index("# TYPE dtj_program_cpu_cores gauge")
    assert lines[at + 1 : at + 3] == [
        'dtj_program_cpu_cores{program="0"} 1.5',
        'dtj_program_cpu_cores{program="a\\"b"} 6.5',
    ]
    assert 'dtj_program_disk_written_bytes_per_second{program="0"} 200.0' in lines
    assert 'dtj_gpu_utilisation_ratio{gpu="0"} 0.93' in lines
    types = [line for line in lines if line.startswith("#")]
    assert len(types) == len(set(types))


def test_the_operator_gets_the_figures_of_the_pod() -> None:
    found = sample(BEFORE, NOW)
    assert totals(found) == {"cpuCores": 2.0, "memoryBytes": 3000, "gpuUtilisation": 0.93}
    outside = replace(found, cores=None, memory=None, gpus={"0": GpuReading(memory_used=3)})
    assert totals(outside) == {"cpuCores": 1.5, "memoryBytes": 1500}


def test_tensorboard_shows_the_scalars(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "worker-0", 1)
    for age in (0.0, 10.0):
        recorder.add(sample(BEFORE, NOW), age)
    accumulator = EventAccumulator(str(tmp_path / "utilisation/tensorboard"))
    accumulator.Reload()
    found = accumulator.Scalars("utilisation/cpu_cores/rank-0")
    assert [(event.step, event.value) for event in found] == [(0, 1.5), (10, 1.5)]
    tags = accumulator.Tags()["scalars"]
    assert set(tags) == set(scalars(sample(BEFORE, NOW), "worker-0"))
    assert {"utilisation/memory_megabytes/pod-worker-0", "utilisation/gpu_power_watts/worker-0-gpu-0"} <= set(
        tags
    )
    lines = (tmp_path / "utilisation/worker-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["seconds"] for line in lines] == [10.0, 10.0]


def test_a_full_disk_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "utilisation").write_text("no folder")
    recorder = Recorder(tmp_path, "worker-0", 1)
    for _ in range(3):
        recorder.add(sample(BEFORE, NOW), 0.0)
    assert len([record for record in caplog.records if "can't be written" in record.message]) == 1


# --- the container and its GPUs ----------------------------------------------------------------

V1 = {
    "cpuacct/cpuacct.usage": "12500000000\n",
    "cpu/cpu.cfs_quota_us": "150000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "memory/memory.usage_in_bytes": "9000\n",
    "memory/memory.stat": "cache 1\ninactive_file 7\ntotal_inactive_file 2000\n",
    "memory/memory.limit_in_bytes": "16000\n",
}
V2 = {
    "cpu.stat": "usage_usec 12500000\nuser_usec 1\n",
    "cpu.max": "150000 100000\n",
    "memory.current": "9000\n",
    "memory.stat": "file 1\ninactive_file 2000\n",
    "memory.max": "16000\n",
}
UNLIMITED = {
    "memory/memory.limit_in_bytes": "9223372036854771712\n",
    "cpu/cpu.cfs_quota_us": "-1\n",
    "memory.max": "max\n",
    "cpu.max": "max 100000\n",
}


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_a_container_by_either_cgroup_version(tmp_path: Path, files: dict[str, str]) -> None:
    def written(content: dict[str, str]) -> Usage:
        for name, text in content.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return usage(tmp_path, tmp_path / "own")

    assert written({}) == Usage()
    assert written(files) == Usage(cpu_seconds=12.5, cpu_limit=1.5, memory=7000, memory_limit=16000)
    unlimited = written({name: UNLIMITED.get(name, text) for name, text in files.items()})
    assert (unlimited.cpu_limit, unlimited.memory_limit) == (None, None)


class FakeNvml:
    """pynvml, with one GPU of a slice (MIG), which has no utilisation."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_FunctionNotFound(NVMLError):
        pass

    nvmlMemory_v2 = 2

    def __init__(self, *, old: bool = False) -> None:
        self.lost, self.old = False, old

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 1:
            raise self.NVMLError_NotSupported
        return SimpleNamespace(gpu=93, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int = 1) -> Any:
        if self.lost:
            raise self.NVMLError("GPU is lost")
        if self.old and version > 1:
            raise self.NVMLError_FunctionNotFound
        return SimpleNamespace(used={1: 45, 2: 40}[version], total=80)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 312_500


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    (tmp_path / "nvidia0").touch()
    return tmp_path


def test_gpus_say_what_they_know(devices: Path) -> None:
    assert Gpus(devices, FakeNvml).read() == {
        "0": GpuReading(0.93, 40, 80, 312.5),
        "1": GpuReading(None, 40, 80, 312.5),
    }


def test_an_old_driver_counts_its_reserve_as_used_memory(devices: Path) -> None:
    assert Gpus(devices, lambda: FakeNvml(old=True)).read()["0"].memory_used == 45


def test_a_driver_that_fails_is_told_once(devices: Path, caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml()
    gpus = Gpus(devices, lambda: nvml)
    nvml.lost = True
    assert [gpus.read(), gpus.read()] == [{}, {}]
    assert [record.message for record in caplog.records] == [
        "the utilisation of GPUs is not measured: GPU is lost"
    ]
    nvml.lost = False
    assert len(gpus.read()) == 2


def test_without_gpus_or_nvml_there_are_no_readings(
    devices: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    def absent() -> Any:
        raise ImportError("No module named 'pynvml'")

    assert Gpus(tmp_path_factory.mktemp("dev"), absent).read() == {}
    assert not caplog.records
    assert Gpus(devices, absent).read() == {}
    assert "nvidia-ml-py is not installed" in caplog.text


# --- real processes ----------------------------------------------------------------------------

BUSY = """
import subprocess, sys, time
def burn():
    begun = time.process_time()
    while time.process_time() - begun < 0.4:
        pass
if sys.argv[1:] == ["child"]:
    burn()
else:
    print("ready", flush=True)
    sys.stdin.readline()
    subprocess.run([sys.executable, __file__, "child"], check=True)
    print("done", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def running(path: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    path.write_text(BUSY)
    with subprocess.Popen(
        [sys.executable, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin", **variables},
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def settings_of(root: Path, **variables: str) -> Settings:
    pod = contract.PodInfo(role="worker", index=0, slots=2)
    return read_settings({contract.ENV_POD: pod.to_json(), contract.ENV_ROOT: str(root), **variables})


def test_the_time_of_a_child_that_has_ended_is_the_programs(tmp_path: Path) -> None:
    with running(tmp_path / "busy.py") as process:
        programs = {"0": process.pid}
        sources, kept = Sources(settings_of(tmp_path)), list[Sample]()
        sampler = Sampler(settings_of(tmp_path), lambda: programs)
        assert sampler.look(sources.read, lambda found, _: kept.append(found)) >= 5.0
        assert (kept, sampler.gauges()) == ([], {})
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        sampler.look(sources.read, lambda found, _: kept.append(found))
        (found,) = kept
        program = found.programs["0"]
        assert 0.39 <= program.cores * found.seconds <= 5
        assert program.processes == 1
        assert program.rss > 1_000_000
        assert program.read is not None
        assert found.disk
        assert sampler.gauges()['dtj_program_cpu_cores{program="0"}'] == program.cores
    sampler.look(sources.read, lambda found, _: kept.append(found))
    assert (len(kept), sampler.gauges()) == (1, {})


def test_ranks_of_a_command_are_found_by_their_environment(tmp_path: Path) -> None:
    program = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "{tmp_path}/busy.py"], env={{**os.environ, "LOCAL_RANK": "1", "RANK": "3"}}).wait()
"""
    (tmp_path / "busy.py").write_text(BUSY)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        found = Sources(settings_of(tmp_path)).read({"worker-0": process.pid}).programs
        assert {name: each.processes for name, each in found.items()} == {"worker-0": 1, "3": 1}
        process.stdin.write("\n\n")  # type: ignore[union-attr]


def test_a_pod_of_two_ranks_from_its_start_to_the_bucket(
    make_workspace: Callable[..., Any], job_uri: str, job_store: Store
) -> None:
    (port,) = free_ports(1)
    pod = make_workspace(
        DTJ_STRATEGY="TorchDistributed",
        DTJ_SLOTS_PER_WORKER="2",
        DTJ_WORLD_SIZE="2",
        DTJ_ARTIFACTS_URI=job_uri,
        DTJ_PROGRESS_PORT=str(port),
    )
    program = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)"
    end = pod.root / "end"
    run = pod.launch("ranks", sys.executable, "-c", program, str(end))
    written_last = pod.root / "utilisation/tensorboard"
    until(lambda: written_last.is_dir() and any(written_last.iterdir()), "a sample", tell=lambda: run.output)
    metrics = get_text(f"http://127.0.0.1:{port}/metrics")
    used = get_json(f"http://127.0.0.1:{port}/progress")["utilisation"]
    end.touch()
    assert run.ended() == 0, run.output
    assert 'dtj_program_memory_rss_bytes{program="1"}' in metrics
    assert used["memoryBytes"] > 1_000_000
    assert "utilisation" not in pod.termination
    key = "utilisation/attempt-1/worker-0"
    assert set(json.loads(job_store.get_bytes(f"{key}.jsonl").splitlines()[0])["programs"]) == {"0", "1"}
    (events,) = (each.key for each in job_store.objects(f"tensorboard/{key}/"))
    assert "tfevents" in events
