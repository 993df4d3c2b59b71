"""The requests to an MLflow server: the one module that imports mlflow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from dtj_trainer.contract.tracking import RunStatus
from dtj_trainer.tracking.client import TrackingRefused, Unavailable
from dtj_trainer.tracking.points import Point

_MISSING, _EXISTS = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE")
_MOST_CHARACTERS = 300


class MlflowServer:
    """An MLflow server. The methods raise Unavailable and TrackingRefused."""

    def __init__(self, uri: str) -> None:
        self._client = MlflowClient(tracking_uri=uri)

    def experiment(self, name: str) -> str:
        """Return the id of the experiment with that name, which is made where it does not exist."""
        with _sentences():
            found = self._client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            try:
                return str(self._client.create_experiment(name))
            except MlflowException as error:
                if error.error_code == _EXISTS:  # Another job has just made the experiment.
                    raise Unavailable(str(error)) from error
                raise

    def run_of(self, experiment: str, uid: str) -> str | None:
        """Return the oldest run of an experiment with that tag `dtj.uid`; None where there is none."""
        with _sentences():
            oldest_first = ["attributes.start_time ASC"]
            found = self._client.search_runs(
                [experiment], f"tags.`dtj.uid` = '{uid}'", max_results=1, order_by=oldest_first
            )
        return str(found[0].info.run_id) if found else None

    def new_run(self, experiment: str, name: str, tags: Mapping[str, str]) -> str:
        """Make a run; return its id."""
        with _sentences():
            made = self._client.create_run(experiment, tags=dict(tags), run_name=name or None)
        return str(made.info.run_id)

    def remove_run(self, run: str) -> None:
        """Delete a run."""
        with _sentences():
            self._client.delete_run(run)

    def params_of(self, run: str) -> Mapping[str, str] | None:
        """Return the parameters of a run; None where there is no such run, or somebody deleted it."""
        with _sentences():
            try:
                found = self._client.get_run(run)
            except MlflowException as error:
                if error.error_code == _MISSING:
                    return None
                raise
        return None if found.info.lifecycle_stage == "deleted" else dict(found.data.params)

    def set_status(self, run: str, status: RunStatus) -> None:
        """Set the status of a run."""
        with _sentences():
            if status == "RUNNING":
                self._client.update_run(run, status)
            else:
                self._client.set_terminated(run, status)

    def send(
        self,
        run: str,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Add to a run, at most MOST_POINTS points, MOST_PARAMS parameters and as many tags."""
        with _sentences():
            self._client.log_batch(
                run,
                [Metric(point.name, point.value, point.time, point.step) for point in points],
                [Param(name, value) for name, value in (params or {}).items()],
                [RunTag(name, value) for name, value in (tags or {}).items()],
                synchronous=True,
            )


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Raise exceptions of mlflow, and of the libraries that it uses, as TrackingRefused or Unavailable."""
    try:
        yield
    except MlflowException as error:
        sentence = " ".join(str(error).split())[:_MOST_CHARACTERS]
        raise (TrackingRefused if error.error_code in _REFUSALS else Unavailable)(sentence) from error
    except (OSError, ValueError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]) from error
