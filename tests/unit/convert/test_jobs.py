"""Conversion of Kubeflow's jobs: inputs in tests/convert_jobs, and the result of each in `expected`.

* published jobs of Kubeflow and their plans
* artifacts, controllers, programs, ranks and sidecars
* random jobs
* `dtj convert`: notes, lists, jobs without equivalent
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dtj.api.errors import Unusable
from dtj.api.job import Job, Manifest, read_job
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.api.validation import faults
from dtj.cli import convert as command
from dtj.cli import main
from dtj.convert.job import convert, is_job, ways
from dtj.convert.mpirun import NoProgram, parse_launch
from dtj.convert.notes import Conversion
from dtj.plan.config_map import START
from dtj.plan.job import plan_job
from tests.unit.support.pods import kubelet_environment

JOBS = Path(__file__).parents[2] / "convert_jobs"
FILES = sorted(JOBS.glob("*.yaml"))
BOTH = {"mpi": JOBS / "mpi-digits.yaml", "tf": JOBS / "tf-evaluator.yaml"}
ANY = {**BOTH, "torch": JOBS / "torch-c10d.yaml"}
FIELDS = {"mpi": "mpiReplicaSpecs", "tf": "tfReplicaSpecs", "torch": "pytorchReplicaSpecs"}


def load(file: Path) -> Manifest:
    """Return the job in a file. A TrainJob may follow its runtime."""
    (manifest,) = [each for each in documents(file) if is_job(each) or "kind" not in each]
    return manifest


def documents(file: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(file.read_text()))


def valid(made: Conversion) -> Job:
    assert made.manifest is not None, [str(note) for note in made.notes]
    job = read_job(made.manifest)
    assert faults(job) == []
    return job


TORCH = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
)
SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def started_by_dtj(container: Manifest) -> bool:
    return container["command"][: len(START)] == [*START]


def own_variables(job: Job, role: str) -> set[str]:
    """Names of the variables that a role's template gives."""
    replica = job.spec.replica_specs.given().get(role)
    containers = replica.template.get("spec", {}).get("containers", []) if replica else []
    return {variable["name"] for container in containers for variable in container.get("env", [])}


def summary(made: Conversion) -> Manifest:
    """What a person would look for in the plan, and every note."""
    notes = [f"{'! ' if note.refused else ''}{note}" for note in made.notes]
    if made.manifest is None:
        return {"notes": notes}
    job = valid(made)
    pods: Manifest = {}
    plan = plan_job(job)
    for pod in plan.pods:
        main = next(c for c in pod["spec"]["containers"] if c["name"] == TRAINER_CONTAINER)
        env = kubelet_environment(main, plan.config)
        own = {v.name for v in job.spec.env} | {"DTJ_WORLD_SIZE", "DTJ_SLOTS_PER_WORKER", *TORCH}
        own |= own_variables(job, pod["metadata"]["labels"]["dtj.dev/role"])
        cluster = json.loads(env["TF_CONFIG"])["cluster"] if "TF_CONFIG" in env else {}
        pods[pod["metadata"]["name"]] = {
            "command": main["command"][len(START) :] if started_by_dtj(main) else main["command"],
            "gpus": main.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0),
            "env": {name: value for name, value in env.items() if name in own},
            "cluster": {role: len(hosts) for role, hosts in cluster.items()},
        }
        if not started_by_dtj(main):
            pods[pod["metadata"]["name"]]["args"] = main.get("args", [])
        if main["securityContext"] != SAFE:
            pods[pod["metadata"]["name"]]["securityContext"] = main["securityContext"]
    policy = job.spec.run_policy.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return {"strategy": job.spec.strategy, "runPolicy": policy, "pods": pods, "notes": notes}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_structure_gives_the_expected_plan_and_notes(file: Path) -> None:
    assert summary(convert(load(file), others=documents(file))) == load(JOBS / "expected" / file.name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_input_is_not_changed(file: Path) -> None:
    manifest = load(file)
    others = documents(file)
    before = copy.deepcopy((manifest, others))
    convert(manifest, "s3://bucket/jobs", others)
    assert (manifest, others) == before


@pytest.mark.parametrize("name", sorted(BOTH))
def test_artifacts_are_set_and_no_longer_told(name: str) -> None:
    made = convert(load(BOTH[name]), "s3://bucket/jobs")
    artifacts = valid(made).spec.artifacts
    assert artifacts is not None
    assert artifacts.uri == "s3://bucket/jobs"
    assert "spec.artifacts" not in [note.field for note in made.notes]


@pytest.mark.parametrize(
    ("manager", "kept"),
    [
        ("kueue.x-k8s.io/multikueue", True),
        ("kubeflow.org/mpi-operator", False),
        ("trainer.kubeflow.org/trainjob-controller", False),
        ("not a path", False),
    ],
)
def test_who_carries_a_job_out_is_kept_but_for_kubeflow_itself(manager: str, kept: bool) -> None:
    manifest = load(BOTH["mpi"])
    manifest["spec"]["runPolicy"] = {"managedBy": manager}
    made = convert(manifest)
    assert valid(made).spec.run_policy.managed_by == (manager if kept else None)
    told = f"spec.runPolicy.managedBy: {manager}: left out: dtj's operator runs the job"
    assert (told in map(str, made.notes)) == (not kept)


@pytest.mark.parametrize(
    ("words", "program", "env"),
    [
        (["mpirun", "-np", "2", "python", "a.py", "-np", "3"], ["python", "a.py", "-np", "3"], {}),
        (["/usr/bin/mpiexec", "-genv", "A", "1", "--", "./a"], ["./a"], {"A": "1"}),
        (["mpirun", "--bind-to=none", "-x", "A=b=c", "./a"], ["./a"], {"A": "b=c"}),
        (["sh", "-c", "mpirun -np 2 \\\n  python 'a b.py'"], ["python", "a b.py"], {}),
        (
            ["mpirun", "--mca", "plm_rsh_agent", "x", "-mca", "coll", "^cuda", "./a"],
            ["./a"],
            {"OMPI_MCA_coll": "^cuda"},
        ),
        (
            ["horovodrun", "-np", "4", "--fusion-threshold-mb", "2", "--autotune", "./a"],
            ["./a"],
            {"HOROVOD_FUSION_THRESHOLD": "2097152", "HOROVOD_AUTOTUNE": "1"},
        ),
    ],
)
def test_the_program_is_found_behind_the_options(
    words: list[str], program: list[str], env: dict[str, str]
) -> None:
    launch = parse_launch(words)
    assert (launch.program, launch.env) == (program, env)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["python", "a.py"],
        ["mpirun"],
        ["mpirun", "-np"],
        ["mpirun", "--unheard-of", "x", "./a"],
        ["mpirun", "-np", "1", "./a", ":", "-np", "1", "./b"],
        ["sh", "-c", "cd /a && mpirun ./a"],
        ["bash", "-c", "mpirun ./a --lr $LR"],
        ["sh", "-c", "mpirun 'a"],
        ["sh", "run.sh"],
    ],
)
def test_a_program_that_would_be_a_guess_is_refused(words: list[str]) -> None:
    with pytest.raises(NoProgram):
        parse_launch(words)


def notes_of(made: Conversion) -> set[str]:
    return {note.field.removeprefix("spec.mpiReplicaSpecs.Launcher.template.spec.") for note in made.notes}


def test_ranks_follow_the_slots_and_a_launcher_that_works_is_one_worker_more() -> None:
    manifest = load(BOTH["mpi"])
    manifest["spec"] |= {"slotsPerWorker": 4, "runLauncherAsWorker": True}
    launcher = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    launcher["args"] = ["-np", "12", "-mca", "plm_rsh_agent", "x", "-wdir", "/app", "python", "a.py"]
    made = convert(manifest)
    pods = {pod["metadata"]["name"]: pod["spec"]["containers"][0] for pod in plan_job(valid(made)).pods}
    env = {variable["name"]: variable["value"] for variable in pods["mpi-digits-worker-2"]["env"]}
    assert (len(pods), env["DTJ_WORLD_SIZE"], env["DTJ_SLOTS_PER_WORKER"]) == (4, "12", "4")
    assert pods["mpi-digits-launcher-0"]["workingDir"] == "/app"
    assert {"containers.command[-wdir]", "spec.runLauncherAsWorker"} <= notes_of(made)
    assert any("-mca plm_rsh_agent x: left out" in str(note) for note in made.notes)


def test_a_job_as_the_cluster_prints_it_is_read() -> None:
    manifest = load(BOTH["mpi"])
    manifest["metadata"] |= {
        "uid": "1",
        "creationTimestamp": None,
        "labels": {"team": "a"},
        "namespace": "ml",
    }
    manifest["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    manifest["status"] = {"conditions": []}
    made = convert(manifest)
    assert valid(made)
    assert made.manifest is not None
    assert made.manifest["metadata"] == {"name": "mpi-digits", "namespace": "ml", "labels": {"team": "a"}}


def test_a_sidecar_may_not_take_the_trainers_name() -> None:
    manifest = load(BOTH["mpi"])
    pod = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    pod["containers"].append({"name": TRAINER_CONTAINER, "image": "a"})
    assert convert(manifest).manifest is None


def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every field of a manifest below its apiVersion and kind."""
    entries: list[Any] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    found = [path] if path else []
    for key, entry in entries:
        if (*path, key) not in {("apiVersion",), ("kind",)}:
            found += paths(entry, (*path, key))
    return found


def put(manifest: Manifest, path: tuple[str | int, ...], value: Any) -> None:
    holder: Any = manifest
    for part in path[:-1]:
        if not isinstance(holder, (dict, list)):
            return
        try:
            holder = holder[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(holder, dict) or (
        isinstance(holder, list) and isinstance(path[-1], int) and path[-1] < len(holder)
    ):
        holder[path[-1]] = value  # type: ignore[index]


OPTIONAL: Manifest = {
    "hostNetwork": True,
    "nodeSelector": {"pool": "a"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {},
    "serviceAccountName": "runner",
    "imagePullSecrets": [{"name": "pull"}],
    "initContainers": [{"name": "wait", "image": "busybox"}],
    "volumes": [{"name": "a", "emptyDir": {}}],
    "restartPolicy": "Never",
    "hostname": "x",
    "securityContext": {"runAsUser": 1},
    "priorityClassName": "high",
}
OF_CONTAINER: Manifest = {
    "envFrom": [{"secretRef": {"name": "a"}}],
    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "ports": [{"name": "tfjob-port", "containerPort": 2222}, {"containerPort": 80}],
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
    "resources": {"limits": {"amd.com/gpu": "2", "cpu": 1}},
    "terminationMessagePath": "/a",
    "workingDir": "/a",
    "imagePullPolicy": "Always",
    "name": "other",
}
OF_POLICY: Manifest = {
    "ttlSecondsAfterFinished": 1,
    "activeDeadlineSeconds": 5,
    "backoffLimit": 2,
    "cleanPodPolicy": "None",
    "suspend": True,
    "managedBy": "kueue.x-k8s.io/multikueue",
    "schedulingPolicy": {"priorityClass": "a", "minAvailable": 1},
}


def some(fields: Manifest) -> st.SearchStrategy[Manifest]:
    return st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in fields.items()})


@pytest.mark.parametrize("name", sorted(FIELDS))
@settings(max_examples=60)
@given(pod=some(OPTIONAL), container=some(OF_CONTAINER), policy=some(OF_POLICY))
def test_any_optional_fields_give_a_valid_job(
    name: str, pod: Manifest, container: Manifest, policy: Manifest
) -> None:
    manifest = load(ANY[name])
    manifest["spec"]["runPolicy"] = policy
    template = manifest["spec"][FIELDS[name]]["Worker"]["template"]["spec"]
    template |= pod
    template["containers"][0] |= container
    if "volumeMounts" in container:
        template["volumes"] = OPTIONAL["volumes"]
    plan_job(valid(convert(copy.deepcopy(manifest))))


@settings(max_examples=200)
@given(data=st.data())
def test_whatever_is_in_a_job_there_is_a_valid_one_or_a_reason(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(FILES))
    manifest, *others = [load(file), *(each for each in documents(file) if not is_job(each))]
    odd = st.sampled_from([None, 0, -1, "", "a: \nb", True, 2.5, [], [1], {}, {"a": None}, {"name": "x"}])
    for changed in (manifest, *others):
        for path in data.draw(st.lists(st.sampled_from(paths(changed)), max_size=4)):
            put(changed, path, copy.deepcopy(data.draw(odd)))
    made = convert(manifest, others=others)
    if made.manifest is None:
        assert any(note.refused for note in made.notes)
    else:
        plan_job(valid(made))
    assert all("\n" not in str(note) for note in made.notes)


def dtj(*words: str | Path, text: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(command.app, [str(word) for word in words], input=text)
    return result.exit_code, result.stdout, result.stderr


def test_the_command_writes_a_job_with_its_notes_as_comments(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    code, out, errors = dtj(BOTH["tf"], "--artifacts", "s3://bucket/jobs", "--output", file)
    assert (code, out) == (0, "")
    comments = [line[4:] for line in file.read_text().splitlines() if line.startswith("# - ")]
    assert comments == [line[4:] for line in errors.splitlines()[1:]]
    assert "&id" not in file.read_text()
    assert faults(read_job(yaml.safe_load(file.read_text()))) == []


def test_standard_input_may_be_a_list_and_other_objects_stay() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}}
    whole = {"apiVersion": "v1", "kind": "List", "items": [claim, load(BOTH["mpi"])]}
    code, out, _ = dtj("-", "-o", "json", text=yaml.safe_dump(whole))
    assert code == 0
    assert [item["kind"] for item in json.loads(out)["items"]] == [
        "PersistentVolumeClaim",
        "DistributedTrainingJob",
    ]


def test_a_job_without_equivalent_ends_with_1_and_writes_nothing() -> None:
    code, out, errors = dtj(JOBS / "torch-elastic.yaml")
    assert (code, out) == (1, "")
    assert "elastic: the number of workers is fixed" in errors


@pytest.mark.parametrize(("page", "file"), [("pytorchjob", "torch-gloo"), ("tfjob", "tf-entrypoint")])
def test_the_command_of_the_page_converts_a_job_whose_image_has_an_entrypoint(page: str, file: str) -> None:
    text = (JOBS.parents[1] / f"docs/{page}.md").read_text()
    ((name, option, words),) = re.findall(
        r'^\$ dtj convert (\S+) (--command) "(.*?)" > job.yaml', text, re.MULTILINE
    )
    assert name == f"{page}.yaml"
    code, out, errors = dtj(JOBS / f"{file}.yaml", option, words)
    assert code == 0, errors
    assert yaml.safe_load(out)["spec"]["command"] == words.split()


def test_the_command_of_the_page_starts_the_ranks_of_a_launcher_with_an_entrypoint() -> None:
    page = (JOBS.parents[1] / "docs/mpi-operator.md").read_text()
    (words,) = re.findall(r'`dtj convert --command "(.*?)"`', page)
    job = load(BOTH["mpi"])
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    launcher |= {"command": [], "args": ["--epochs=3"]}
    job["spec"]["slotsPerWorker"] = 2
    code, out, errors = dtj("-", "--command", words, text=yaml.safe_dump(job))
    assert code == 0, errors
    assert yaml.safe_load(out)["spec"]["command"] == ["python", "train.py", "--epochs=3"]


@pytest.mark.parametrize(
    ("option", "said"), [("python 'train.py", "--command: No closing quotation"), (" ", "--command is empty")]
)
def test_a_command_that_no_shell_splits_is_unusable(option: str, said: str) -> None:
    with pytest.raises(Unusable, match=re.escape(said)):
        CliRunner().invoke(command.app, [str(ANY["torch"]), "--command", option], catch_exceptions=False)


WRAPPED = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}


@pytest.mark.parametrize(
    ("version", "kind", "spec", "said", "way"),
    [
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {},
            "JobSet",
            "convert the TrainJob that made it, or write a job",
        ),
        ("batch/v1", "Job", {"completionMode": "Indexed"}, "Job (Indexed)", "PET_NODE_RANK has the index"),
        ("batch/v1", "Job", {}, "Job", "give one of MPIJob, TFJob, "),
        ("ray.io/v1", "RayJob", {}, "RayJob", "write the function that Ray runs on each worker as a script"),
        (
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            {},
            "AppWrapper",
            "convert the wrapped job from a file",
        ),
        (
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            {"components": [{"template": {"kind": "Service"}}, 1, {"template": WRAPPED}]},
            "AppWrapper",
            "a file of its own: the PyTorchJob in spec.components[2].template",
        ),
        ("apps/v1", "Deployment", "odd", "Deployment", "give one of MPIJob, TFJob, "),
    ],
)
def test_another_kind_of_job_is_named_with_the_way_from_it(
    version: str, kind: str, spec: Any, said: str, way: str
) -> None:
    text = yaml.safe_dump({"apiVersion": version, "kind": kind, "spec": spec})
    with pytest.raises(Unusable) as refused:
        CliRunner().invoke(command.app, ["-"], input=text, catch_exceptions=False)
    assert refused.value.message == f"-: has no job of Kubeflow or torchx, only {version} {said}"
    assert way in (refused.value.remedy or "")


def test_the_way_to_a_new_job_makes_a_valid_one() -> None:
    (way,) = ways([{"apiVersion": "batch/v1", "kind": "Job", "spec": {"completionMode": "Indexed"}}]).values()
    line = re.search(r"dtj (new .* --workers N)", way or "")
    assert line
    given = {"NAME": "mnist", "IMAGE": "registry.test/torch:1", "COMMAND": "python train.py", "N": "4"}
    words = [given.get(word, word) for word in line[1].split()]
    result = CliRunner().invoke(main.app, [*words, "--yes", "--output", "-"], catch_exceptions=False)
    job = read_job(yaml.safe_load(result.stdout))
    assert (faults(job), job.spec.worker.replicas, job.spec.command) == ([], 4, ["python", "train.py"])


def test_what_torchx_prints_is_read_without_its_report() -> None:
    job = (JOBS / "torchx-ddp.yaml").read_text()
    report = "\n=== APPLICATION ===\n{ 'metadata': {},\n  'name': 'digits'}\n\n=== SCHEDULER REQUEST ===\n"
    code, out, errors = dtj("-", "-o", "json", text=report + job + "\n\n")
    assert code == 0, errors
    assert json.loads(out)["spec"]["torch"] == {"procsPerWorker": 2}


def test_a_runtime_is_read_and_not_printed() -> None:
    code, out, errors = dtj(JOBS / "trainjob-runtime.yaml")
    assert code == 0, errors
    (made,) = yaml.safe_load_all(out)
    assert (made["kind"], made["spec"]["image"]) == ("DistributedTrainingJob", "registry.test/torch:2")


def test_a_date_is_text_as_in_kubernetes() -> None:
    text = BOTH["tf"].read_text().replace("metadata:", "metadata:\n  annotations: {made: 2026-11-21}", 1)
    code, out, _ = dtj("-", text=text)
    assert code == 0
    assert yaml.safe_load(out)["metadata"]["annotations"] == {"made": "2026-11-21"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "-: has no job of Kubeflow or torchx"),
        ("a: 1\n", "has no job of Kubeflow or torchx, only an object without kind"),
        ("- 1\n", ":1: the YAML document is not a Kubernetes object"),
        ("a: 1\nb: 2\na: 3\n", "-:3: a: given twice, on line 1 already"),
        ("a: b: c\n", "-:1: invalid YAML: "),
        ("a: " + 1000 * "[", "nested too deeply"),
    ],
)
def test_a_file_without_jobs_is_unusable(text: str, said: str) -> None:
    with pytest.raises(Unusable, match=re.escape(said)):
        CliRunner().invoke(command.app, ["-"], input=text, catch_exceptions=False)
