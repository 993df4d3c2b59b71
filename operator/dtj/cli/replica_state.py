"""The state of one replica in a few words. Pure."""

from __future__ import annotations

from rich.text import Text

from dtj.status.pods import PodView


def replica_state(pod: PodView) -> Text:
    """What it is doing, or how it ended, with the cluster's own word where there is one."""
    if pod.exit is not None and pod.exit.code == 0:
        return Text("Succeeded", "green")
    if pod.disrupted:
        return Text(pod.reason, "magenta")
    if pod.exit is not None:
        return Text(_failed(pod), "red")
    if pod.deleting:
        return Text("Ending", "yellow")
    if pod.waiting is not None:
        return Text(pod.waiting[0], "yellow")
    if pod.phase == "Running":
        return Text("Running", "cyan") if pod.ready else Text("Running, not ready", "yellow")
    if pod.phase == "Pending":
        return Text("Starting" if pod.scheduled else "Waits for a node", "yellow")
    return Text(pod.phase, {"Succeeded": "green", "Failed": "red"}.get(pod.phase, ""))


def _failed(pod: PodView) -> str:
    assert pod.exit is not None
    how = f"signal {pod.exit.signal}" if pod.exit.signal else f"exit code {pod.exit.code}"
    reason = pod.exit.reason
    return f"{reason} ({how})" if reason not in ("", "Error") else f"Failed ({how})"
