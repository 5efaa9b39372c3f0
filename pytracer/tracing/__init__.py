"""The tracer: its options, its steps and phases, and the snapshots it writes."""
