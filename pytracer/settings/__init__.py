"""The allocator's settings."""
