"""What allocators do: the names of the values of an event's action, in recordings and in files."""

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "workspace_snapshot",
    "annotate",
)
"""By value: `enum pytracer_action` of csrc/hook.h, and csrc/reading/actions.h."""
