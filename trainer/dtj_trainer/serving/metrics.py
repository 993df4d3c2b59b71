"""Prometheus metrics of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from dtj_trainer.serving.loaded_model import LoadedModel

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics. The label `model` is the name of a model that is served, or empty."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "dtj_serve_requests",
            "Requests, by route and status.",
            ["model", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "dtj_serve_request_seconds",
            "Time from the first byte of a request to the last of its answer.",
            ["model", "route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "dtj_serve_batch_examples",
            "Examples of a batch.",
            ["model"],
            buckets=_EXAMPLES,
            registry=self._registry,
        )
        self._refused = Counter(
            "dtj_serve_refused", "Requests that were refused, by reason.", ["reason"], registry=self._registry
        )
        self._waiting = Gauge(
            "dtj_serve_waiting_examples",
            "Examples that wait for a batch.",
            ["model"],
            registry=self._registry,
        )
        self._held_requests = Gauge(
            "dtj_serve_held_requests", "Requests that the server is answering.", registry=self._registry
        )
        self._held_bytes = Gauge(
            "dtj_serve_held_bytes",
            "Bytes of the requests that the server is answering.",
            registry=self._registry,
        )
        self._loaded = Gauge(
            "dtj_serve_model_info",
            "The version that answers.",
            ["model", "version", "uri"],
            registry=self._registry,
        )
        self._steps = Gauge(
            "dtj_serve_model_steps",
            "Steps of the training of the version that answers.",
            ["model"],
            registry=self._registry,
        )
        self._swaps = Counter(
            "dtj_serve_model_swaps",
            "Replacements of a version by a newer one.",
            ["model"],
            registry=self._registry,
        )
        self._failures = Counter(
            "dtj_serve_load_failures",
            "Newer versions that could not be read.",
            ["model"],
            registry=self._registry,
        )

    def answered(self, model: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        key = model, route, status
        if key not in self._answers:
            self._answers[key] = (
                self._requests.labels(model, route, str(status)),
                self._seconds.labels(model, route),
            )
        counter, histogram = self._answers[key]
        counter.inc()
        histogram.observe(seconds)

    def ran(self, model: str, examples: int) -> None:
        """Count a batch."""
        self._batches.labels(model).observe(examples)

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self._refused.labels(reason).inc()

    def waiting(self, model: str, examples: int) -> None:
        """Set the length of a queue."""
        self._waiting.labels(model).set(examples)

    def held(self, requests: int, size: int) -> None:
        """Set the number of requests that the server holds, and their bytes."""
        self._held_requests.set(requests)
        self._held_bytes.set(size)

    def loaded(self, model: str, new: LoadedModel, old: LoadedModel | None) -> None:
        """Set the version that answers."""
        if old:
            self._loaded.remove(model, old.version, old.uri)
            self._swaps.labels(model).inc()
        self._loaded.labels(model, new.version, new.uri).set(1)
        if new.description.steps is not None:
            self._steps.labels(model).set(new.description.steps)

    def load_failed(self, model: str) -> None:
        """Count a version that could not be loaded."""
        self._failures.labels(model).inc()

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
