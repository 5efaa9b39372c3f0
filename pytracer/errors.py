"""What pytracer raises. Every message names the value that was wrong and what to do about it."""


class PytracerError(Exception):
    """Base of everything pytracer raises on purpose."""


class ConfigError(PytracerError, ValueError):
    """An option has a value that cannot be used."""


class HookError(PytracerError, RuntimeError):
    """An allocator hook could not be found, built or attached; recording is not possible."""
