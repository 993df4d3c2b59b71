"""The state of one replica in a few words. All functions are pure."""

from __future__ import annotations

from rich.text import Text

from dtj.client.views import Pod


def replica_state(pod: Pod) -> Text:
    """Return what a replica does, or how it ended, with the reason that Kubernetes gives, if any."""
    if pod.exit_code == 0:
        return Text("Succeeded", "green")
    if pod.disrupted:
        return Text(pod.reason, "magenta")
    if pod.exit_code is not None:
        return Text(_failed(pod), "red")
    if pod.deleting:
        return Text("Ending", "yellow")
    if pod.reason:
        return Text(pod.reason, "yellow")
    if pod.phase == "Running":
        return Text("Running", "cyan") if pod.ready else Text("Running, not ready", "yellow")
    if pod.phase == "Pending":
        return Text("Starting" if pod.node else "Waits for a node", "yellow")
    return Text(pod.phase, {"Succeeded": "green", "Failed": "red"}.get(pod.phase, ""))


def _failed(pod: Pod) -> str:
    how = f"signal {pod.signal}" if pod.signal else f"exit code {pod.exit_code}"
    return f"{pod.reason} ({how})" if pod.reason not in ("", "Error") else f"Failed ({how})"
