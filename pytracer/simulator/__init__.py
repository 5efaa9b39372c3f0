"""The simulator of a device's caching allocator, which needs no device and no torch."""
