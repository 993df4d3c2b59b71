"""The invalid job files of tests/bad_jobs, as far as the faults can be found without a cluster."""

from __future__ import annotations

import re

import pytest

from dtj.api.crd import custom_resource_definition
from dtj.api.job import InvalidJob, read_job
from dtj.api.validation import faults
from tests.unit.support.bad_jobs import DIRECTORY, KINDS, BadJob, bad_jobs
from tests.unit.support.structural import schema_faults, with_defaults

SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def named(bad: BadJob) -> str:
    return bad.file.stem


def operators_faults(bad: BadJob) -> list[str]:
    try:
        return [str(fault) for fault in faults(read_job(with_defaults(SCHEMA, bad.manifest)))]
    except InvalidJob as error:
        return [str(fault) for fault in error.faults]


def test_there_are_enough_of_them_and_of_every_kind() -> None:
    assert len(bad_jobs()) >= 34
    assert {bad.by for bad in bad_jobs()} == set(KINDS)


def test_every_yaml_file_is_one_of_them() -> None:
    assert {path.suffix for path in DIRECTORY.iterdir()} == {".yaml", ".md"}


@pytest.mark.parametrize("bad", bad_jobs(), ids=named)
def test_header_is_complete_and_the_name_is_its_own(bad: BadJob) -> None:
    assert bad.file.read_text().startswith("# by: ")
    assert bad.messages
    names = [other.manifest["metadata"]["name"] for other in bad_jobs()]
    assert names.count(bad.manifest["metadata"]["name"]) == 1


@pytest.mark.parametrize("bad", bad_jobs("kubectl"), ids=named)
def test_schema_refuses_what_kubectl_is_to_refuse(bad: BadJob) -> None:
    said = list(schema_faults(SCHEMA, bad.manifest))

    if bad.manifest["apiVersion"] != "dtj.dev/v1alpha1":
        assert operators_faults(bad) == ["apiVersion: 'dtj.dev/v1' is not dtj.dev/v1alpha1"]
        return
    assert bad.unsaid("\n".join(said)) == []
    assert len(said) == len(bad.messages)


@pytest.mark.parametrize("bad", bad_jobs("kubectl"), ids=named)
def test_operator_refuses_it_too_where_no_schema_stands_before_it(bad: BadJob) -> None:
    faults = operators_faults(bad)

    assert len(faults) == len(bad.messages)
    for fault in faults:
        assert re.fullmatch(r"(spec|apiVersion)[\w.\[\]]*: .+", fault), "a sentence on one line"


@pytest.mark.parametrize("bad", bad_jobs("status"), ids=named)
def test_operator_says_exactly_this(bad: BadJob) -> None:
    assert list(schema_faults(SCHEMA, bad.manifest)) == [], "kubectl would refuse it already"
    assert operators_faults(bad) == [message for (message,) in bad.messages]


@pytest.mark.parametrize("bad", bad_jobs("server", "pending", "run"), ids=named)
def test_what_only_a_cluster_finds_passes_validation(bad: BadJob) -> None:
    assert list(schema_faults(SCHEMA, bad.manifest)) == []
    assert operators_faults(bad) == []
