"""What a tracking server may answer, and the settings of its client. Without mlflow."""

from __future__ import annotations

MOST_POINTS = 1000
"""The most points of a request, by the server's limit."""
MOST_PARAMS = 100
"""The most parameters or tags of a request, by the server's limit."""
CLIENT_VARIABLES = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Variables of mlflow's client, unless the job sets them. mlflow itself repeats no request: `Tracker` does, until the
pod ends."""


class Unavailable(Exception):
    """The server did not accept a request. The same request may succeed later."""


class TrackingRefused(Exception):
    """The server refused a request as invalid. The same request would fail again."""
