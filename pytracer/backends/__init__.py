"""torch's devices and their hooks."""
