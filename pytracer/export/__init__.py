"""Snapshots in other formats: tables, flame graphs, Perfetto traces."""
