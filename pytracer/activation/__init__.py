"""Tracing without a change to the code."""
