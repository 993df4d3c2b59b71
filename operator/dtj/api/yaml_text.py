"""Writes data as YAML that Kubernetes reads as the same data: strings such as `y` and `1e-3` get quotes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from dtj.api.yaml_types import IMPLICIT

try:
    from yaml import CSafeDumper as _SafeDumper
except ImportError:  # This PyYAML is built without libyaml: take the slower dumper.
    from yaml import SafeDumper as _SafeDumper  # type: ignore[assignment]


class _Dumper(_SafeDumper):
    """Also quotes strings that PyYAML reads as strings and Kubernetes reads as other types: `1e-3`, `y`."""


for _tag, _pattern, _first in IMPLICIT:
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def dump(data: Any, *, width: int = 110, **style: Any) -> str:
    """Write one document. The keys keep their order. style: further arguments of `yaml.dump`."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=width, **style)
    return text


def dump_all(documents: Iterable[Any]) -> str:
    """Write several documents. The keys keep their order."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False)
    return text
