"""Experiments with the allocator's settings."""
