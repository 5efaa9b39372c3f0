"""Write a copy of a snapshot in which memory_viz colours allocations by their phase.

    python examples/colour_phases.py snapshot.pickle    # writes coloured.pickle

Only for a file of your own: unpickling a stranger's file may run anything.
"""

import pickle
import sys

with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
for trace in snapshot["device_traces"]:
    for event in trace:
        is_allocation = event["action"] == "alloc"
        # The page fails if there are categories and none of them is "unknown".
        event["category"] = (is_allocation and event["user_metadata"]) or "unknown"
with open("coloured.pickle", "wb") as file:
    pickle.dump(snapshot, file, protocol=4)
