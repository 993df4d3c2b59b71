"""Alerts and dashboard of the chart: every query uses metrics that the operator exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import prometheus_client
import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dtj.api.status import Phase
from tests.chart.alerts import ON, alerts
from tests.chart.helm import CHART, NAMESPACE, rendered
from tests.unit.support.measured import all_told

DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OF_PROMETHEUS = {"job", "namespace", "instance", "pod"}
VARIABLE = re.compile(r"\$(\w+)")


def told() -> dict[str, set[str]]:
    """The labels of each metric that an operator tells which leads."""
    text = prometheus_client.generate_latest(all_told()).decode()
    return {"up": set()} | {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


TOLD = told()


def queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            # Grafana fills the variables in before Prometheus sees them.
            yield panel["title"], VARIABLE.sub(".*", target["expr"])


def unknown(query: str) -> list[str]:
    """What a query asks for that nobody tells."""
    wrong: list[str] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            labels = {matcher.name for matcher in node.matchers.matchers}
            if node.name not in TOLD:
                wrong.append(node.name)
            else:
                wrong.extend(labels - TOLD[node.name] - OF_PROMETHEUS)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            wrong.extend(set(node.modifier.labels) - set().union(*TOLD.values()))
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return wrong


def phases_in(query: str) -> set[str]:
    found: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            for matcher in node.matchers.matchers:
                found.update(matcher.value.split("|") if matcher.name == "phase" else ())
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


@pytest.mark.parametrize(
    ("name", "alert"), alerts().items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_alert_asks_for_what_the_operator_tells_and_says_what_to_do(
    name: str, alert: dict[str, Any]
) -> None:
    assert unknown(alert["expr"]) == []
    assert phases_in(alert["expr"]) <= {phase.value for phase in Phase}
    assert f'job="dtj-operator-metrics", namespace="{NAMESPACE}"' in alert["expr"]
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]


def test_the_monitors_job_is_the_one_that_alerts_select() -> None:
    """Prometheus calls a job by its Service."""
    assert "Service/dtj-operator-metrics" in rendered(ON)


def test_values_reach_the_alerts() -> None:
    values = {"jobsStuckFor": "20m", "gpusIdleFor": "2h", "checkpointAgeSeconds": 900, "queueDepth": 7}
    made = alerts(values | {"alertLabels": {"team": "ml"}})

    assert made["DtjJobStuck"]["for"] == "20m"
    assert made["DtjGpusIdle"]["for"] == "2h"
    assert " > 900 " in made["DtjCheckpointStale"]["expr"]
    assert made["DtjQueueDeep"]["expr"].endswith("> 7")
    assert {alert["labels"]["team"] for alert in made.values()} == {"ml"}


def test_each_alert_can_be_left_out_by_its_name() -> None:
    known = SCHEMA["properties"]["metrics"]["properties"]["prometheusRule"]["properties"]["disabled"]
    every = set(alerts())

    assert set(known["items"]["enum"]) == every
    assert set(alerts({"disabled": ["DtjOperatorDown"]})) == every - {"DtjOperatorDown"}


@pytest.mark.parametrize(("panel", "query"), list(queries()))
def test_a_panel_asks_for_what_the_operator_tells(panel: str, query: str) -> None:
    assert unknown(query) == []
    assert phases_in(query) <= {phase.value for phase in Phase}


def test_counts_are_whole_numbers() -> None:
    """Prometheus extrapolates to the ends of the time: `increase` makes 1.01 of one failure."""
    counts = [
        target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
        if "increase(" in target["expr"] and panel["fieldConfig"]["defaults"]["unit"] == "short"
    ]
    assert counts
    assert [query for query in counts if not query.startswith("round(")] == []


def test_the_check_finds_what_nobody_tells() -> None:
    assert unknown("sum by (phase) (dtj_jobs)") == []
    assert unknown("dtj_job") == ["dtj_job"]
    assert unknown('max_over_time(dtj_job_steps{phase="Running"}[5m])') == ["phase"]
    assert unknown('dtj_jobs{state="Running"}') == ["state"]
    assert unknown("sum by (state) (rate(dtj_job_restarts_total[5m]))") == ["state"]


def test_every_metric_of_jobs_and_passes_is_on_the_dashboard() -> None:
    text = " ".join(query for _, query in queries())
    asked = set(re.findall(r"dtj_\w+", text))
    asked |= {name.removesuffix("_bucket") + "_count" for name in asked}
    of_the_webhook = ("dtj_admission_", "dtj_webhook_")
    ours = {name for name in TOLD if name.startswith("dtj_") and not name.endswith("_sum")}
    ours = {name for name in ours if not name.startswith(of_the_webhook)}

    assert ours - asked == set()


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_dashboard_lets_its_reader_choose_the_data_source() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "namespace", "job_namespace", "strategy", "job"}
    used = {
        name
        for panel in DASHBOARD["panels"]
        for t in panel.get("targets", ())
        for name in VARIABLE.findall(t["expr"])
    }
    assert used == variables - {"datasource"}
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_grafanas_sidecar_finds_the_dashboard_as_it_is() -> None:
    made = rendered({"metrics": {"dashboard": {"enabled": True}}})["ConfigMap/dtj-operator-dashboard"]

    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(made["data"]["dtj-operator.json"]) == DASHBOARD


def test_pods_are_not_scraped_twice() -> None:
    def annotations(values: dict[str, Any]) -> dict[str, str]:
        template = rendered(values)["Deployment/dtj-operator"]["spec"]["template"]
        return template["metadata"].get("annotations", {})

    assert annotations({}) == {"prometheus.io/scrape": "true", "prometheus.io/port": "8081"}
    assert annotations(ON) == {}
