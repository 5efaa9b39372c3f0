"""The exceptions of pytracer. Every message names the value at fault and says what to do."""


class PytracerError(Exception):
    """Base of all exceptions that pytracer raises on purpose."""


class ConfigError(PytracerError, ValueError):
    """An option has a value that cannot be used."""


class HookError(PytracerError, RuntimeError):
    """An allocator hook could not be found, built or attached, so that nothing can be recorded."""


class NoMomentError(PytracerError):
    """A device, or none of several devices, has the moment that was asked for."""
