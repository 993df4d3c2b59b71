"""A kubeconfig for an API server of the tests."""

from __future__ import annotations

from pathlib import Path

import yaml

TOKEN = "a-token"


def write_kubeconfig(path: Path, url: str, token: str = TOKEN) -> None:
    """A kubeconfig with two contexts: `ml`, the current one, in namespace ml, and `bare` without a namespace."""
    contexts = {"ml": {"cluster": "c", "user": "u", "namespace": "ml"}, "bare": {"cluster": "c", "user": "u"}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ml",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
    }
    path.write_text(yaml.safe_dump(content))
