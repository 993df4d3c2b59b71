"""Label and field selectors of lists and watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from dtj.api.job import Manifest
from tests.unit.support.api_answers import KINDS
from tests.unit.support.fake_cluster import Name

Asked = Callable[[Name, Manifest], bool]
"""Whether a list or watch selects an object."""


def selection(request: web.Request) -> Asked:
    """What a list or watch selects."""
    kind, namespace = KINDS[request.match_info["plural"]], request.match_info.get("namespace")
    only = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
    selector = request.query.get("labelSelector", "")

    def asked(name: Name, manifest: Manifest) -> bool:
        labels = manifest["metadata"].get("labels", {})
        here = name[0] == kind and namespace in (None, name[1]) and only in ("", name[2])
        return here and _selected(labels, selector)

    return asked


def _selected(labels: Mapping[str, str], selector: str) -> bool:
    wanted = [requirement.partition("=") for requirement in selector.split(",") if requirement]
    return all(labels.get(key) == value if equals else key in labels for key, equals, value in wanted)
