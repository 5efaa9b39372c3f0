"""The packages that an integration needs, which pytracer itself does not install."""

import contextlib
from collections.abc import Iterator

from pytracer.errors import PytracerError


class MissingPackageError(PytracerError, ImportError):
    """A package that an integration needs is not installed for this Python, or has a problem.

    `integration` is the last part of the name of its module, `package` is the name for pip.
    """

    def __init__(self, integration: str, package: str, problem: object = None) -> None:
        why = "which is not installed" if problem is None else f"which fails: {problem}"
        super().__init__(
            f"pytracer.integrations.{integration} needs the package {package}, {why}. "
            f"Install the package: pip install {package}"
        )


@contextlib.contextmanager
def needs(integration: str, package: str) -> Iterator[None]:
    """Raise a MissingPackageError in place of an `ImportError` of the body."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(integration, package, error) from error
