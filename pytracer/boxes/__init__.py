"""Boxes: files that have what a process records while it records, should it be killed."""
