"""Log snapshots as artifacts of the W&B run.

`PYTRACER_ON_SNAPSHOT=pytracer.integrations.wandb:upload`
"""

import sys
from typing import Any

from pytracer.errors import PytracerError
from pytracer.integrations import packages
from pytracer.integrations.helper_process import remote_name


def upload(path: str) -> None:
    """Log a snapshot as an artifact of the current W&B run: a value for `on_snapshot`.

    W&B copies the file at once, and uploads the copy in a process of its own. All snapshots of a
    run are versions of one artifact, `pytracer-{id of the run}`, of the type `memory_snapshot`.

    Raises:
        PytracerError: There is no run in this process.
        MissingPackageError: wandb is not installed.
    """
    packages.check("wandb", "wandb", "wandb")
    wandb: Any = sys.modules.get("wandb")
    run = None if wandb is None else wandb.run
    if run is None:
        raise PytracerError(
            f"there is no W&B run in this process, so {path} is not logged: call wandb.init() "
            "before the snapshot is written, and end the tracer before wandb.finish()"
        )
    artifact = wandb.Artifact(f"pytracer-{run.id}", type="memory_snapshot")
    artifact.add_file(path, name=remote_name(path))
    run.log_artifact(artifact)
