"""Run a program: see truth.py."""

import os
import re
import sys

import torch
from corpus import truth

from pytracer.owners import holders

if "PATIENT" in os.environ:  # a busy machine looks at fewer objects in the time that users have
    holders.MAX_SECONDS = holders.MAX_GRAPH_SECONDS = 30.0
torch.backends.cudnn.enabled = False  # the simulated one has no convolutions
(name,) = sys.argv[1:]
DEFINED = re.compile(rf"^def {name}\(", re.MULTILINE)
(module,) = (path.stem for path in truth.HERE.glob("*.py") if DEFINED.search(path.read_text()))
__import__(f"corpus.{module}")
truth.PROGRAMS[name].job()
