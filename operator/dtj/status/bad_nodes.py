"""Nodes on which a job lost pods. The next attempts avoid nodes that lost pods repeatedly."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

MOST_NODES = 32
"""Maximum number of nodes in a status. The status keeps the nodes with the most losses."""
_MOST_NAMED = 4


def counted(known: Mapping[str, int] | None, nodes: Collection[str]) -> dict[str, int] | None:
    """Add one loss to the count of each of these nodes."""
    counts = {**(known or {}), **{node: (known or {}).get(node, 0) + 1 for node in nodes}}
    kept = sorted(counts, key=lambda node: (node not in nodes, -counts[node], node))[:MOST_NODES]
    return {node: counts[node] for node in sorted(kept)} or None


def describe_avoided(nodes: Sequence[str]) -> str:
    """Describe the avoided nodes; return an empty text when the job avoids none."""
    if not nodes:
        return ""
    more = f" and {len(nodes) - _MOST_NAMED} more" if nodes[_MOST_NAMED:] else ""
    return f"; avoids {', '.join(nodes[:_MOST_NAMED])}{more}, where pods were lost before"
