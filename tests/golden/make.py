"""Writes a golden file of the current format version: `python tests/golden/make.py cpu`, or `cuda`.

Run it once for each new version, and never for an old one: that file is the old version's.
"""

import socket
import sys
from pathlib import Path

import pytracer
from pytracer.tracer import FORMAT_VERSION

TRAINING = """
import torch

def forward(x):
    return x.relu() @ x.T

def step(x):
    forward(x)
    return forward(x)[0] + 1

torch.set_num_threads(1)
kept = [step(torch.ones(8, 8, device=DEVICE)) for _ in range(3)]
"""

if __name__ == "__main__":
    device = sys.argv[1]
    path = Path(__file__).with_name("snapshot-{}.{}-{}.pickle".format(*FORMAT_VERSION, device))
    if path.exists():
        raise SystemExit(f"{path} exists: it belongs to the version that wrote it")
    socket.gethostname = lambda: "example"
    # Two frames: this file's own stays out.
    options = {"stack_depth": 2, "role": "trainer", "metadata": {"made by": "tests/golden/make.py"}}
    with pytracer.Tracer(path, device=device, **options) as tracer:
        with pytracer.annotate("training"):
            exec(compile(TRAINING, "train.py", "exec"), {"DEVICE": device})
        tracer.step()
