"""What the tracking process reads from its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.contract.tracking import MLFLOW_COMMIT, MLFLOW_RUN, tracking_uri


@dataclass(frozen=True)
class TrackerSettings:
    """The job, the pod and the tracking server."""

    uri: str
    experiment: str
    """Name of the experiment, where `experiment_id` is empty."""
    experiment_id: str
    run_id: str
    """The run that the job's own MLFLOW_RUN_ID names; empty: dtj finds or makes one."""
    job: str
    namespace: str
    uid: str
    strategy: str
    attempt: int
    pod: str
    """`<role>-<index>`."""
    root: Path
    config_dir: Path
    artifacts_uri: str | None
    code_digest: str
    """Empty for a job whose program is in the image."""
    code_commit: str
    """Empty for code of an unknown commit."""

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the job's run that are known at its start."""
        tags = {
            "dtj.uid": self.uid,
            "dtj.job": self.job,
            "dtj.namespace": self.namespace,
            "dtj.strategy": self.strategy,
            "dtj.attempt": str(self.attempt),
            "dtj.artifacts": self.artifacts_uri or "",
            "dtj.code": self.code_digest,
            MLFLOW_COMMIT: self.code_commit,
        }
        return {name: value for name, value in tags.items() if value}


def read_tracker_settings(environment: Mapping[str, str]) -> TrackerSettings:
    """Read the environment of a pod. Raises ValueError where it names no tracking server, or DTJ_POD is invalid."""
    uri = tracking_uri(environment, contract.ENV_TRACKING_URI)
    if uri is None:
        raise ValueError(f"{contract.ENV_TRACKING_URI} or MLFLOW_TRACKING_URI must be an http(s) URL")
    attempt = environment.get(contract.ENV_ATTEMPT, "")
    named = environment.get(contract.ENV_TRACKING_EXPERIMENT)
    return TrackerSettings(
        uri=uri,
        experiment=named or environment.get("MLFLOW_EXPERIMENT_NAME") or "Default",
        experiment_id="" if named else environment.get("MLFLOW_EXPERIMENT_ID", ""),
        run_id=environment.get(MLFLOW_RUN, ""),
        job=environment.get(contract.ENV_JOB, ""),
        namespace=environment.get(contract.ENV_NAMESPACE, ""),
        uid=environment.get(contract.ENV_UID, ""),
        strategy=environment.get(contract.ENV_STRATEGY, ""),
        attempt=int(attempt) if attempt.isdecimal() else 1,
        pod=contract.PodInfo.from_json(environment[contract.ENV_POD]).name,
        root=Path(environment.get(contract.ENV_ROOT) or contract.ROOT),
        config_dir=Path(environment.get(contract.ENV_CONFIG_DIR) or contract.CONFIG_DIR),
        artifacts_uri=environment.get(contract.ENV_ARTIFACTS_URI) or None,
        code_digest=environment.get(contract.ENV_CODE_DIGEST, ""),
        code_commit=environment.get(contract.ENV_CODE_COMMIT, ""),
    )
