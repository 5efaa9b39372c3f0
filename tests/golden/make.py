"""Write a golden file of the current format version: `python tests/golden/make.py cpu`, or `cuda`.

Run this script once for each new format version. Never run it again for an old version: its file
must stay as the old version wrote it.
"""

import os
import socket
import sys
from pathlib import Path

import torch

import pytracer
from pytracer.tracing.snapshot_writer import FORMAT_VERSION

TRAINING = """
import torch

def forward(x):
    return x.relu() @ x.T

def step(x):
    forward(x)
    return forward(x)[0] + 1

def train(x):
    loss = x.exp().sum()
    loss.backward()
    return x.grad

def pinned_block(size):
    return torch.ones(size, pin_memory=DEVICE == "cuda")

def pin():
    pinned_block(10)
    return pinned_block(5000)

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to(DEVICE)
with pytracer.annotate_modules(model):
    model(torch.ones(8, device=DEVICE)).sum().backward()
gradient = train(torch.ones(8, 8, device=DEVICE, requires_grad=True))
older.clear()
kept = [step(torch.ones(8, 8, device=DEVICE)) for _ in range(3)]
pinned = pin()
"""

if __name__ == "__main__":
    device = sys.argv[1]
    path = Path(__file__).with_name("snapshot-{}.{}-{}.pickle".format(*FORMAT_VERSION, device))
    if path.exists():
        raise SystemExit(f"{path} exists: it belongs to the version that wrote it")
    socket.gethostname = lambda: "example"
    program = Path("/tmp/golden/train.py")
    program.parent.mkdir(exist_ok=True)
    program.write_text(TRAINING)
    os.utime(program, (1, 1))  # pytracer takes the source of a file that is older than the process
    # A depth of two frames leaves out the frame of this file.
    options = {"stack_depth": 2, "role": "trainer", "metadata": {"made by": "tests/golden/make.py"}}
    options["pinned_memory"] = device == "cuda"
    # The ring loses allocations of `older`, and keeps their frees.
    options["trace_alloc_max_entries"] = 100
    with pytracer.Tracer(path, device=device, forward_stacks=True, **options) as tracer:
        older = [torch.ones(2000, device=device) for _ in range(30)]
        tracer.step()
        del older[1:]
        with pytracer.annotate("training"):
            code = compile(TRAINING, str(program), "exec")
            exec(code, {"DEVICE": device, "pytracer": pytracer, "older": older})
        tracer.step()
