"""Job files: every fault with its line, in the words of the operator.

* the order and the lines of faults
* unknown, missing and repeated fields, and values of another type
* several jobs, other objects and lists in one file
* files that are no job files
* YAML as Kubernetes reads it: anchors, dates, numbers, empty fields; JSON
"""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api import yaml_lines
from dtj.api.errors import Unusable
from dtj.api.job import InvalidJob, Manifest, read_job
from dtj.api.job_file import FaultyFile, JobFile, read_job_file, read_one_job
from dtj.api.validation import faults
from dtj.api.yaml_text import dump
from tests.unit.support.jobs import manifest

GOOD = """\
apiVersion: dtj.dev/v1alpha1
kind: DistributedTrainingJob
metadata:
  name: mnist
spec:
  strategy: Horovod
  image: trainer:1
  command: [python, train.py]
  replicaSpecs:
    worker:
      replicas: 2
"""
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: s3-credentials}\n"

# Nine levels of nine aliases: 387 million values in 560 bytes.
LEVELS = [", ".join([f"*a{level}"] * 9) for level in range(9)]
BOMB = "".join(f"a{level + 1}: &a{level + 1} [{{{level}}}]\n" for level in range(9))
MERGED_BOMB = "".join(f"a{level + 1}: &a{level + 1} {{{{<<: [{{{level}}}]}}}}\n" for level in range(9))


def messages(text: str) -> list[str]:
    return read_job_file(text, "job.yaml").messages()


def test_a_good_file_has_no_fault() -> None:
    file = read_job_file(GOOD, "job.yaml")

    assert file.faults == ()
    assert [(found.line, found.job and found.job.name) for found in file.jobs] == [(1, "mnist")]


def test_faults_come_in_the_order_of_lines_each_at_its_key() -> None:
    text = """\
apiVersion: dtj.dev/v1alpha1
kind: DistributedTrainingJob
metadata:
  name: MNIST
spec:
  strategy: Horovod
  env:
    - name: A
      value: "1"
    - name: DTJ_JOB
      value: x
  image: 'trainer:'
  replicaSpecs:
    worker:
      resources:
        limits:
          example.com/gpu: 2 pieces
      template:
        spec:
          containers:
            - {name: sidecar, image: x}
            - name: trainer
              command: python
"""
    assert [line.split(": ")[0:2] for line in messages(text)] == [
        ["job.yaml:4", "metadata.name"],
        ["job.yaml:5", "spec.command"],
        ["job.yaml:10", "spec.env[1].name"],
        ["job.yaml:12", "spec.image"],
        ["job.yaml:17", "spec.replicaSpecs.worker.resources.limits[example.com/gpu]"],
        ["job.yaml:23", "spec.replicaSpecs.worker.template.spec.containers[trainer].command"],
    ]


def test_what_is_missing_is_told_at_its_parent() -> None:
    assert messages(GOOD.replace("    worker:\n      replicas: 2\n", "    launcher: {}\n")) == [
        "job.yaml:9: spec.replicaSpecs.worker: required by strategy Horovod"
    ]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("replicaspecs: {}", "spec.replicaspecs: unknown field; did you mean replicaSpecs?"),
        (
            "runPolicy: {backofLimit: 1}",
            "spec.runPolicy.backofLimit: unknown field; did you mean backoffLimit?",
        ),
        ("env: [{name: A, vaule: x}]", "spec.env[0].vaule: unknown field; did you mean value?"),
        ("zebra: 1", "spec.zebra: unknown field"),
    ],
)
def test_an_unknown_field_comes_with_the_one_that_was_meant(written: str, said: str) -> None:
    assert messages(f"{GOOD}  {written}\n") == [f"job.yaml:12: {said}"]


def test_an_unknown_field_outside_the_spec_is_one_too() -> None:
    assert messages(f"{GOOD}Spec: {{}}\n") == ["job.yaml:12: Spec: unknown field; did you mean spec?"]


def test_faults_of_the_form_and_those_only_code_can_say_are_told_at_once() -> None:
    text = GOOD.replace("replicas: 2", "replicas: two").replace("name: mnist", "name: MNIST")

    assert [line.split(": ")[:2] for line in messages(text)] == [
        ["job.yaml:4", "metadata.name"],
        ["job.yaml:11", "spec.replicaSpecs.worker.replicas"],
    ]


@pytest.mark.parametrize("strategy", ["strategy: horovod", "strategy: [Horovod]", "# no strategy"])
@pytest.mark.parametrize("version", ["dtj.dev/v1alpha1", "dtj.dev/v1"])
def test_neither_a_wrong_version_nor_a_wrong_strategy_hides_other_faults(strategy: str, version: str) -> None:
    text = GOOD.replace("dtj.dev/v1alpha1", version).replace("strategy: Horovod", strategy)
    text = text.replace("name: mnist", "name: My_Job").replace("trainer:1", "my image")
    text = text.replace("replicas: 2", "resources: {limits: {memory: 4GB}}") + "  imagee: x\n"

    assert [fault.field for fault in read_job_file(text, "job.yaml").faults] == [
        *(["apiVersion"] if version == "dtj.dev/v1" else []),
        "metadata.name",
        "spec.strategy",
        "spec.image",
        "spec.replicaSpecs.worker.resources.limits[memory]",
        "spec.imagee",
    ]


def test_two_faults_in_one_list_hide_none_elsewhere() -> None:
    text = f"{GOOD.replace('trainer:1', 'Trainer')}  env:\n    - value: a\n    - value: b\n"

    assert [line.split(": ")[:2] for line in messages(text)] == [
        ["job.yaml:7", "spec.image"],
        ["job.yaml:13", "spec.env[0].name"],
        ["job.yaml:14", "spec.env[1].name"],
    ]


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ("command: [python, train.py]", "command: 5", ["spec.command"]),
        ("command: [python, train.py]", "args: --epochs=1", ["spec.args"]),
        ("  image: trainer:1\n", "", ["spec.image"]),
        ("worker:\n      replicas: 2", "worker: 2", ["spec.replicaSpecs.worker"]),
        ("replicas: 2", "resources: 3", ["spec.replicaSpecs.worker.resources"]),
        (
            "replicas: 2",
            "replicas: 2\n  artifacts: {uri: s3://bucket, resume: FromUri, resumeUri: s3://bucket/x}",
            ["spec.artifacts.resume"],
        ),
        ("strategy: Horovod", "strategy: MPI", ["spec.strategy"]),
        ("strategy: Horovod", "strategy: MPI\n  parameterServer: {}", ["spec.strategy"]),
        ("strategy: Horovod", "horovod: {}", ["spec.strategy"]),
    ],
)
def test_nothing_is_made_up_because_a_field_could_not_be_read(old: str, new: str, fields: list[str]) -> None:
    assert [fault.field for fault in read_job_file(GOOD.replace(old, new), "job.yaml").faults] == fields


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("replicas: 2", 'replicas: "2"', "11: spec.replicaSpecs.worker.replicas"),
        ("replicas: 2", "replicas: yes", "11: spec.replicaSpecs.worker.replicas"),
        ("name: mnist", "name: 7", "4: metadata.name"),
        ("name: mnist", "name: mnist\n  labels: {version: 2}", "5: metadata.labels[version]"),
        ("name: mnist", "name: mnist\n  labels: [a]", "5: metadata.labels"),
    ],
)
def test_a_value_of_another_type_is_refused_as_by_the_api_server(old: str, new: str, said: str) -> None:
    assert [line.split(": must be a")[0] for line in messages(GOOD.replace(old, new))] == [f"job.yaml:{said}"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("worker:\n      replicas: 2", "worker: 2", "10: spec.replicaSpecs.worker: must be an object, got 2"),
        ("replicas: 2", "replicas: 0", "11: spec.replicaSpecs.worker.replicas: must be at least 1, got 0"),
        (
            "replicas: 2",
            "replicas: 2.5",
            "11: spec.replicaSpecs.worker.replicas: must be a whole number, got 2.5",
        ),
        (
            "replicas: 2",
            "resources: {limits: 3}",
            "11: spec.replicaSpecs.worker.resources.limits: must be an object, got 3",
        ),
        ("image: trainer:1", "image: ''", "7: spec.image: must not be empty"),
        ("image: trainer:1", "image: 5", "7: spec.image: must be a string, got 5"),
        ("[python, train.py]", "python", "8: spec.command: must be a list, got 'python'"),
        (
            "[python, train.py]",
            f"[{'a, ' * 1025}]",
            "8: spec.command: must have at most 1024 entries, has 1025",
        ),
        (
            "strategy: Horovod",
            "strategy: MPI",
            "6: spec.strategy: must be Horovod, ParameterServer or TorchDistributed, got 'MPI'",
        ),
        (
            "replicas: 2",
            "replicas: 2\n  artifacts: {uri: /data/out}",
            "12: spec.artifacts.uri: must be an address s3://bucket/prefix, got '/data/out'",
        ),
        (
            "replicas: 2",
            "replicas: 2\n  runPolicy: {suspend: 1, managedBy: x}",
            "12: spec.runPolicy.suspend: must be true or false, got 1",
        ),
        ("replicas: 2", 'replicas: 2\n  "": 1', '12: spec."": unknown field'),
        ("kind: D", '"": 1\nkind: D', '2: "": unknown field'),
        (
            "replicas: 2",
            'replicas: 2\n      "": 1\n      "": 2',
            '13: spec.replicaSpecs.worker."": unknown field',
        ),
    ],
)
def test_faults_of_the_form_are_told_in_words_and_with_a_field(old: str, new: str, said: str) -> None:
    lines = messages(GOOD.replace(old, new))

    assert f"job.yaml:{said}" in lines
    assert not [line for line in lines if "input" in line or "valid " in line or "^" in line or ".:" in line]


def test_a_whole_number_may_be_written_as_a_fraction_as_on_the_api_server() -> None:
    assert messages(GOOD.replace("replicas: 2", "replicas: 2.0")) == []


def test_a_long_value_is_not_told_whole() -> None:
    (fault,) = messages(GOOD.replace("strategy: Horovod", f"strategy: {'x' * 5000}"))
    assert len(fault) < 400


def test_a_key_that_is_given_twice_is_a_fault() -> None:
    assert messages(GOOD + "    worker: {replicas: 3}\n") == [
        "job.yaml:12: spec.replicaSpecs.worker: given twice, on line 10 already"
    ]


def test_every_job_of_a_file_is_checked_and_other_objects_are_passed_over() -> None:
    file = read_job_file(f"{SECRET}---\n{GOOD}---\n# nothing\n---\n{GOOD.replace('mnist', 'M')}", "job.yaml")

    assert [(other.line, other.name) for other in file.others] == [(1, "Secret s3-credentials")]
    assert [found.line for found in file.jobs] == [5, 19]
    assert [fault.line for fault in file.faults] == [22]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.yaml: no DistributedTrainingJob in it: the file is empty"),
        (SECRET, "job.yaml: no DistributedTrainingJob in it, only Secret s3-credentials"),
        ("- a", "job.yaml: no DistributedTrainingJob in it, only a list"),
        ("a: 1\nb: [", "job.yaml:2: invalid YAML: while parsing a flow node"),
        ("a: 1\nb: !unknown x", "job.yaml:2: !unknown: Kubernetes takes only the tags !!str, "),
        ("a: *b", "job.yaml:1: invalid YAML: found undefined alias"),
        ("{[]: 1}: 2", "job.yaml:1: invalid YAML: while constructing a mapping"),
        ("a: !!int x", "job.yaml:1: 'x' is not a whole number of 64 bits"),
        ("a: \x00", "job.yaml: invalid YAML: "),
        ("[" * 1000, "job.yaml:1: nested too deeply"),
        ("{" + '"a": {' * 100_000 + "\t", "job.yaml:1: nested too deeply"),
        (f"{GOOD}  env: &e\n  - *e\n", "job.yaml:13: the alias *e is inside the value that it stands for"),
        (
            f"{GOOD}    launcher: &l\n      template: {{spec: *l}}\n",
            "job.yaml:13: the alias *l is inside the value",
        ),
        ("a0: &a0 [x]\n" + BOMB.format(*LEVELS), "job.yaml:7: too large"),
        ("a0: &a0 {x: 1}\n" + MERGED_BOMB.format(*LEVELS), "job.yaml:7: too large"),
        (f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 1000}]", "job.yaml:2: too large"),
        (f"{GOOD}# {'x' * (4 << 20)}", "job.yaml: larger than 4 MiB"),
        ("a: 1\nb: .nan", "job.yaml:2: '.nan' is not a number that JSON can express"),
        ("a: -.inf", "job.yaml:1: '-.inf' is not a number that JSON can express"),
        ("a: 1e400", "job.yaml:1: '1e400' is not a number that JSON can express"),
        (f"a: 0x{'f' * 5000}", "job.yaml:1: '0xffff"),
        (f"a: {'9' * 5000}", "job.yaml:1: '9999"),
        ("a: 1\nb: !!timestamp x", "job.yaml:2: !!timestamp: Kubernetes takes only the tags"),
        ("a: !!timestamp 2026-01-01", "job.yaml:1: !!timestamp: Kubernetes"),
        ("a: !!binary aGVsbG8=", "job.yaml:1: !!binary: Kubernetes"),
        ("a: !!set {b}", "job.yaml:1: !!set: Kubernetes"),
        ('a: !!float ""', "job.yaml:1: '' is not a number"),
        ("a: !!int", "job.yaml:1: '' is not a whole number"),
        ("a: !!bool x", "job.yaml:1: 'x' is not a truth value"),
        ("a: !!null x", "job.yaml:1: 'x' is not a null"),
        ("a: !!int [1]", "job.yaml:1: invalid YAML: expected a scalar node"),
        ("a: 1\n~: 2", "job.yaml:2: a key is empty or null; write a key before the colon"),
    ],
)
def test_what_is_no_job_file_is_unusable(text: str, message: str) -> None:
    with pytest.raises(Unusable) as caught:
        read_job_file(text, "job.yaml")

    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind: DistributedTrainingJob\n", "", "1: kind: required: DistributedTrainingJob"),
        ("apiVersion: dtj.dev/v1alpha1\n", "", "1: apiVersion: required: dtj.dev/v1alpha1"),
        ("dtj.dev/v1alpha1", "dtj.dev/v1", "1: apiVersion: 'dtj.dev/v1' is not dtj.dev/v1alpha1"),
        ("TrainingJob", "TrainJob", "2: kind: 'DistributedTrainJob' is not DistributedTrainingJob"),
    ],
)
def test_a_job_whose_kind_is_misspelt_is_told_so(old: str, new: str, said: str) -> None:
    assert messages(GOOD.replace(old, new)) == [f"job.yaml:{said}"]


@pytest.mark.parametrize("indent", ["\t", 2, None])
def test_json_is_read_too(indent: str | int | None) -> None:
    data = yaml.safe_load(GOOD)
    assert messages(json.dumps(data, indent=indent)) == []
    data["spec"]["image"] = "trainer:"
    (fault,) = read_job_file(json.dumps(data, indent=indent), "job.json").faults
    assert (fault.line, fault.field) == (9 if indent else 1, "spec.image")


def test_the_objects_of_a_list_are_read_as_documents_are() -> None:
    good = "".join(f"    {line}\n" for line in GOOD.splitlines()).replace("    ", "  - ", 1)
    bad = good.replace("replicas: 2", "replicas: 0\n          replicas: 0")
    file = read_job_file(f"apiVersion: v1\nkind: List\nitems:\n{good}{bad}  - kind: Secret\n", "jobs.yaml")

    assert [job.line for job in file.jobs] == [4, 15]
    assert [fault.line for fault in file.faults] == [26, 26]
    assert [other.line for other in file.others] == [27]


def test_anchors_and_merged_keys_have_the_lines_where_they_are_written() -> None:
    text = GOOD.replace("replicas: 2", "&size\n      replicas: 0").replace(
        "worker:\n      &size", "worker: &size"
    )
    text += "    launcher:\n      <<: *size\n      gpus: -1\n"

    assert [line.split(": ")[:2] for line in messages(text)] == [
        ["job.yaml:11", "spec.replicaSpecs.launcher.replicas"],
        ["job.yaml:11", "spec.replicaSpecs.worker.replicas"],
        ["job.yaml:14", "spec.replicaSpecs.launcher.gpus"],
    ]


def test_a_field_left_empty_counts_as_left_out_as_on_the_api_server() -> None:
    assert messages(f"{GOOD}  env:\n  horovod:\n  runPolicy:\n    backoffLimit:\n") == []
    assert messages(GOOD.replace("trainer:1", "")) == ["job.yaml:7: spec.image: required"]


def test_a_date_is_text_as_in_kubernetes() -> None:
    written, _ = read_one_job(
        GOOD.replace("name: mnist", "name: mnist\n  labels: {day: 2026-11-21}"), "job.yaml"
    )

    assert written["metadata"]["labels"] == {"day": "2026-11-21"}


# By sigs.k8s.io/yaml 1.6: what kubectl sends of each.
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("2026-01-01 10:00:00", "2026-01-01 10:00:00"),
        ("=", "="),
        ("y", True),
        ("N", False),
        ("Off", False),
        ("010", 8),
        ("-0o17", -15),
        ("0b101", 5),
        ("0x1F", 31),
        ("1_000", 1000),
        ("08", 8.0),
        ("1e3", 1000.0),
        ("1.e+2", 100.0),
        ("-.5", -0.5),
        ("+1", 1),
        ("1.2.3", "1.2.3"),
        ("~", None),
        ("!!float 5", 5.0),
        ("!!str 5", "5"),
        ('"5"', "5"),
        ("18446744073709551615", 18446744073709551615),
        ("{1: a, y: b, 1.5: c, 0x10: d}", {"1": "a", "true": "b", "1.5": "c", "16": "d"}),
        ("{<<: {a: 1}, b: 2}", {"a": 1, "b": 2}),
    ],
)
@pytest.mark.parametrize("libyaml", [True, False])
def test_values_are_what_kubernetes_makes_of_them(
    written: str, value: Any, libyaml: bool, without_libyaml: ModuleType
) -> None:
    (document,) = (yaml_lines if libyaml else without_libyaml).read_documents(
        f"a: {written}\nb: x", "job.yaml"
    )

    assert document.data == {"a": value, "b": "x"}
    assert type(document.data["a"]) is type(value)
    assert document.line_of("b") == 2


@pytest.fixture(scope="module")
def without_libyaml() -> ModuleType:
    """The reader as it is where PyYAML was built without libyaml."""
    loader, origin = yaml.CSafeLoader, yaml_lines.__spec__
    assert origin
    spec = spec_from_file_location("yaml_lines_without_libyaml", origin.origin)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    del yaml.CSafeLoader
    try:
        spec.loader.exec_module(module)
    finally:
        yaml.CSafeLoader = loader
    return module


@given(
    st.lists(
        st.sampled_from(
            [
                "1e-3",
                "y",
                "N",
                "on",
                "=",
                "<<",
                "1:30",
                "08",
                "0o17",
                "0x1F",
                "1_0",
                ".5",
                ".nan",
                "-.inf",
                "~",
                "null",
                "",
            ]
        )
        | st.text("01eEyYnNxo_.:+-~", max_size=6)
        | st.booleans()
        | st.none()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats(allow_nan=False, allow_infinity=False),
        max_size=5,
    )
)
def test_what_is_written_as_yaml_is_read_by_kubernetes_as_it_was(values: list[Any]) -> None:
    data = {"values": values, **{value: 1 for value in values if isinstance(value, str)}}
    (document,) = yaml_lines.read_documents(dump(data), "job.yaml")

    assert document.data == data
    assert [*map(type, document.data["values"])] == [*map(type, values)]
    assert yaml.safe_load(dump(data)) == data, "PyYAML's own rules are kept, too"


def test_json_may_write_a_character_by_two_surrogates() -> None:
    data = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "\\\U0001f600\U0001f600 \\ud83d\\ude00"},
    }
    (document,) = yaml_lines.read_documents(json.dumps(data, indent="\t"), "job.json")

    assert document.data == data


def test_what_a_cluster_added_is_not_looked_at() -> None:
    assert messages(f"{GOOD}status: 5\n".replace("name: mnist", "name: mnist\n  generation: many")) == []


def test_one_job_is_given_as_written_and_read() -> None:
    written, job = read_one_job(f"{GOOD}---\n{SECRET}", "job.yaml")

    assert written == yaml.safe_load(GOOD)
    assert job == read_job(written)


def test_of_several_jobs_none_is_taken() -> None:
    with pytest.raises(Unusable, match=r"job.yaml: has 2 jobs \(lines 1, 13\); give a file with"):
        read_one_job(f"{GOOD}---\n{GOOD}", "job.yaml")


def test_the_error_of_a_faulty_file_has_one_fault_a_line() -> None:
    with pytest.raises(FaultyFile) as caught:
        read_one_job(GOOD.replace("mnist", "M").replace("trainer:1", "'trainer:'"), "job.yaml")

    assert caught.value.exit_code == 1
    heading, *lines = caught.value.message.splitlines()
    assert heading == "job.yaml has 2 faults"
    assert [line.split(": ")[0] for line in lines] == ["job.yaml:4", "job.yaml:7"]


VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from(["", "x", "s3://bucket", "4Gi", "FromURI", "MPI"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["worker", "replicas", "gpus", "template", "uri", "resume", "resumeUri", "name", "limits"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
SPEC_FIELDS = [
    "strategy",
    "image",
    "command",
    "args",
    "env",
    "replicaSpecs",
    "artifacts",
    "accelerator",
    "imagee",
]


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(SPEC_FIELDS), VALUES, max_size=4), st.sampled_from(["mnist", "M", None])
)
def test_every_fault_that_the_operator_tells_is_told_of_the_file(spec: Manifest, name: str | None) -> None:
    made = manifest()
    made["spec"] |= spec
    made["metadata"] = {"name": name}
    file: JobFile = read_job_file(yaml.safe_dump(made, sort_keys=False), "job.yaml")

    try:
        operators = faults(read_job(made))
        assert len(file.faults) == len(operators)
    except InvalidJob as error:
        operators = error.faults
    said = [(fault.field, fault.message) for fault in file.faults]
    assert {(fault.field, fault.message) for fault in operators} <= set(said)
    assert [fault.line for fault in file.faults] == sorted(fault.line for fault in file.faults)
