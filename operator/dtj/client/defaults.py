"""Defaults for a job that dtj makes of a script: image, bucket, credentials, nodes.

Options win over the user's file, and the file wins over the ConfigMap `dtj-defaults` of the namespace. The key
`config.toml` of the ConfigMap has the same syntax as the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from dtj.api.base import OBJECT_NAME, ApiModel
from dtj.api.errors import Unusable
from dtj.api.schema_errors import sentence
from dtj.api.spec import HTTP_URL, S3_URI, Accelerator, StrategyName

CONFIG_MAP, KEY = "dtj-defaults", "config.toml"
OPTIONS = "options"
_MOST_BYTES = 1024**2


class DefaultArtifacts(ApiModel):
    """Where artifacts go, as `spec.artifacts`."""

    uri: Annotated[str, Field(pattern=S3_URI, max_length=1024)] | None = None
    endpoint: Annotated[str, Field(pattern=HTTP_URL, max_length=1024)] | None = None
    secret_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None


class Defaults(ApiModel):
    """The defaults of one source."""

    image: dict[StrategyName, Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=dict
    )
    """The image of a job, by the name of the strategy."""
    artifacts: DefaultArtifacts | None = None
    service_account_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """ServiceAccount of the pods, which reaches the bucket without a Secret."""
    accelerator: Accelerator | None = None
    """The value for `spec.accelerator`: the kind of GPUs and the nodes that have them."""


@dataclass(frozen=True)
class Value:
    """One value, and the source that it comes from."""

    key: str
    """The key as the file names it, such as `artifacts.uri`."""
    value: Any
    source: str


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's file: dtj/config.toml in $XDG_CONFIG_HOME or ~/.config."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "dtj" / "config.toml"


def of_file(path: Path) -> Defaults | None:
    """Return the defaults of the user's file; None without a file. Raises Unusable for a file that can't be used."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
    try:
        return read(text.decode(), str(path))
    except UnicodeDecodeError:
        raise Unusable(f"{path}: not text in UTF-8") from None


def of_config_map(manifest: Mapping[str, Any] | None, namespace: str) -> Defaults | None:
    """Return the defaults of the ConfigMap of a namespace; None without a ConfigMap. Raises Unusable."""
    if manifest is None:
        return None
    where = name_of_config_map(namespace)
    text = (manifest.get("data") or {}).get(KEY)
    if text is None:
        raise Unusable(f"{where} has no key {KEY}", "docs/code.md of dtj shows one")
    return read(text, where)


def name_of_config_map(namespace: str) -> str:
    """Return the name of the ConfigMap for messages."""
    return f"ConfigMap {namespace}/{CONFIG_MAP}"


def read(text: str, where: str) -> Defaults:
    """Read defaults. where: their source, for messages. Raises Unusable with every fault."""
    try:
        return read_plain(tomllib.loads(text), where)
    except tomllib.TOMLDecodeError as error:
        raise Unusable(f"{where}: {error}") from None
    except RecursionError:
        raise Unusable(f"{where}: the TOML is nested too deeply") from None


def read_plain(data: Mapping[str, Any], where: str) -> Defaults:
    """Read defaults of plain data. Arguments and errors as for `read`."""
    try:
        return Defaults.model_validate(data)
    except ValidationError as error:
        told = (f"{'.'.join(map(str, each['loc']))}: {sentence(dict(each))}" for each in error.errors())
        raise Unusable(f"{where}: {'; '.join(told)}") from None


def resolved(sources: Iterable[tuple[str, Defaults | None]]) -> dict[str, Value]:
    """Return each value by its key, of the first source that has it.

    The tables `artifacts` and `accelerator` come whole from one source: the bucket of one source is never used with
    the endpoint or the Secret of another. Only options replace single values of a table.
    """
    found: dict[str, Value] = {}
    tables: dict[str, str] = {}
    for source, defaults in sources:
        for key, value in _values(defaults) if defaults else ():
            table = key.partition(".")[0]
            whole = table in ("artifacts", "accelerator") and source != OPTIONS
            if not whole or tables.setdefault(table, source) == source:
                found.setdefault(key, Value(key, value, source))
    account, secret = found.get("serviceAccountName"), found.get("artifacts.secretName")
    if account and secret and account.source == OPTIONS != secret.source:
        del found[
            secret.key
        ]  # The keys of the Secret would take precedence over the ServiceAccount that the user named.
    return found


def _values(defaults: Defaults) -> Iterator[tuple[str, Any]]:
    for key, value in defaults.model_dump(by_alias=True, mode="json", exclude_unset=True).items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items() if inner is not None)
        elif value is not None:
            yield key, value
