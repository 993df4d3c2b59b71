"""Nodes on which a job lost pods, so that its next attempts avoid those where that happens again and again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

MOST_NODES = 32
"""A status remembers no more nodes than that: those on which most was lost."""
_MOST_TOLD = 4


def counted(known: Mapping[str, int] | None, nodes: Collection[str]) -> dict[str, int] | None:
    """The counts with one loss more on each of these nodes."""
    counts = {**(known or {}), **{node: (known or {}).get(node, 0) + 1 for node in nodes}}
    kept = sorted(counts, key=lambda node: (node not in nodes, -counts[node], node))[:MOST_NODES]
    return {node: counts[node] for node in sorted(kept)} or None


def describe_avoided(nodes: Sequence[str]) -> str:
    """Which nodes are avoided, in words; empty when none is."""
    if not nodes:
        return ""
    more = f" and {len(nodes) - _MOST_TOLD} more" if nodes[_MOST_TOLD:] else ""
    return f"; avoids {', '.join(nodes[:_MOST_TOLD])}{more}, where pods were lost before"
