"""The differences between two snapshots, or between the snapshots of two runs."""
