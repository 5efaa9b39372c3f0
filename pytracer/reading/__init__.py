"""Snapshot files as numpy columns, on any machine: nothing here imports torch.

from pytracer.reading import find, load

snapshot = load("snapshot.pickle")             # executes nothing of the file
trace = snapshot.traces[0]                     # the events of device 0, as columns
largest = trace.size_bytes.argmax()
print(snapshot.actions[trace.action[largest]], snapshot.stacks.frames(trace.stack[largest]))

for path in find(["outputs/profile"]):         # all snapshots in a directory
    print(path, load(path).metadata.rank)
"""

from pytracer.reading.files import find
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Blocks, Frame, Segments, Snapshot, Stacks, Trace

__all__ = ["Blocks", "Frame", "Segments", "Snapshot", "Stacks", "Trace", "find", "load"]
