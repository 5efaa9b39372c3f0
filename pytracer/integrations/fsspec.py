"""Upload snapshots to a URL of fsspec, such as `s3://bucket/folder` or `gs://bucket/folder`.

    PYTRACER=1 PYTRACER_ON_SNAPSHOT=pytracer.integrations.fsspec:upload \\
        PYTRACER_UPLOAD_URL=s3://bucket/runs/7 python train.py
"""

import os
import shutil

import pytracer
from pytracer.integrations import packages
from pytracer.integrations.helper_process import remote_name, send

URL = "PYTRACER_UPLOAD_URL"


def upload(path: str) -> None:
    """Copy a snapshot to `PYTRACER_UPLOAD_URL`, in a helper process: a value for `on_snapshot`.

    The copy has the name of the file in the working directory. The local file stays.

    Raises:
        ConfigError: The variable is not set.
        MissingPackageError: fsspec is not installed.
    """
    url = os.environ.get(URL, "")
    if not url:
        raise pytracer.ConfigError(
            f"{URL} is not set, so {path} is not uploaded. Set it to a folder, such as "
            "s3://bucket/runs/7"
        )
    packages.check("fsspec", "fsspec", "fsspec")
    send(__name__, path, url=f"{url.rstrip('/')}/{remote_name(path)}")


def work(path: str, url: str) -> None:
    """Copy a file to a URL now."""
    with packages.needs("fsspec", "fsspec"):
        import fsspec
    with open(path, "rb") as source, fsspec.open(url, "wb") as target:
        shutil.copyfileobj(source, target, 2**23)
