"""Test an upload to `s3://`, with the real s3fs and a server that speaks S3 on this machine."""

from pathlib import Path

import pytest
from processes import environment, installed, run, start

JOB = """
import pytracer
import torch

with pytracer.Tracer() as tracer:
    for _ in range(2):
        kept = torch.ones(1000)
        tracer.step()
"""

OPTIONS = {
    "PYTRACER_OUTPUT": "out",
    "PYTRACER_DEVICE": "cpu",
    "PYTRACER_STEPS": "1,2",
    "PYTRACER_ON_SNAPSHOT": "pytracer.integrations.fsspec:upload",
    "PYTRACER_UPLOAD_URL": "s3://bucket/run/",
}

SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""

CLIENT = """
import sys
import fsspec

files = fsspec.filesystem("s3")
if sys.argv[1] == "make":
    files.mkdir("bucket")
else:
    files.get("bucket/", "copies/", recursive=True)
"""


@pytest.mark.slow
def test_s3(tmp_path: Path) -> None:
    # GIVEN a server that speaks S3, and an empty bucket
    for package in ("s3fs", "moto.server"):
        left_out = f"tests/integrations/requirements.txt leaves out {package}"
        pytest.importorskip(package, reason=left_out, exc_type=ImportError)
    for folder in ("server", "job"):
        (tmp_path / folder).mkdir()
    with start(SERVER, cwd=tmp_path / "server") as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        access = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "user",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        made = run(CLIENT, "make", cwd=tmp_path, env=environment(**access))
        assert made.returncode == 0, made.stderr
        # WHEN a job has uploaded the snapshots of two steps
        env = installed(tmp_path / "job", **OPTIONS, **access)
        result = run(JOB, cwd=tmp_path / "job", env=env)
        assert result.returncode == 0
        assert result.stderr == ""
        got = run(CLIENT, "get", cwd=tmp_path, env=environment(**access))
        assert got.returncode == 0, got.stderr
    # THEN the bucket has copies of both
    copies = contents(tmp_path / "copies" / "run" / "out")
    assert copies == contents(tmp_path / "job" / "out")
    assert len(copies) == 2


def contents(folder: Path) -> dict[str, bytes]:
    """Return the snapshots in a folder, by name."""
    paths = folder.rglob("*.pickle")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
