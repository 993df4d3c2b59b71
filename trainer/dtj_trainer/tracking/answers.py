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
"""Variables of mlflow, unless the job sets them. `Tracker` repeats failed requests, and knows when the pod ends."""


class Unavailable(Exception):
    """The server did not take a request now; it may take it later."""


class TrackingRefused(Exception):
    """The server will not take this request as it is."""
