"""The alerts of the chart, as Helm renders them."""

from __future__ import annotations

from typing import Any

from tests.chart.helm import rendered

ON = {"metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}}


def alerts(rule: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    values = {"metrics": ON["metrics"] | {"prometheusRule": {"enabled": True} | (rule or {})}}
    (group,) = rendered(values)["PrometheusRule/dtj-operator"]["spec"]["groups"]
    return {alert["alert"]: alert for alert in group["rules"]}
