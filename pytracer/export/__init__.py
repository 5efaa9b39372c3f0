"""Snapshots in other formats: tables and flame graphs."""
