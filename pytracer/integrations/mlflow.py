"""Log snapshots as artifacts of the MLflow run.

`PYTRACER_ON_SNAPSHOT=pytracer.integrations.mlflow:upload`
"""

import os
import sys
from typing import Any

from pytracer.errors import PytracerError
from pytracer.integrations import packages
from pytracer.integrations.helper_process import remote_name, send


def upload(path: str) -> None:
    """Log a snapshot as an artifact of the MLflow run, in a helper process: for `on_snapshot`.

    The run is that of the thread that wrote the snapshot, the last one if it has ended, or else the
    run that `MLFLOW_RUN_ID` names.

    Raises:
        PytracerError: There is no run.
        MissingPackageError: mlflow is not installed.
    """
    packages.check("mlflow", "mlflow-skinny", "mlflow")
    mlflow: Any = sys.modules.get("mlflow")
    run = None if mlflow is None else (mlflow.active_run() or mlflow.last_active_run())
    run_id = os.environ.get("MLFLOW_RUN_ID") if run is None else run.info.run_id
    if run_id is None:
        raise PytracerError(
            f"there is no MLflow run, so {path} is not logged: call mlflow.start_run() before the "
            "snapshot is written, or set MLFLOW_RUN_ID"
        )
    uri = "" if mlflow is None else mlflow.get_tracking_uri()
    folder = os.path.dirname(remote_name(path))
    send(__name__, path, run_id=run_id, uri=uri, folder=folder)


def work(path: str, run_id: str, uri: str, folder: str) -> None:
    """Log a file now. An empty `uri` stands for that of the environment."""
    with packages.needs("mlflow", "mlflow-skinny"):
        from mlflow import MlflowClient
    MlflowClient(tracking_uri=uri or None).log_artifact(run_id, path, folder or None)
