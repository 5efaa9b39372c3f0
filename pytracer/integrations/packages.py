"""The packages that an integration needs, which pytracer itself does not install."""

import contextlib
import importlib.util
from collections.abc import Iterator

from pytracer.errors import PytracerError


class MissingPackageError(PytracerError, ImportError):
    """A package that an integration needs is not installed for this Python."""

    def __init__(self, integration: str, package: str, problem: object = None) -> None:
        """Name the package and the command that installs it.

        Args:
            integration: The last part of the name of the integration's module.
            package: The package's name for pip.
            problem: Why the package cannot be imported; None: it is not there.
        """
        why = "which is not installed" if problem is None else f"which fails: {problem}"
        super().__init__(
            f"pytracer.integrations.{integration} needs the package {package}, {why}. "
            f"Install the package: pip install {package}"
        )


@contextlib.contextmanager
def needs(integration: str, package: str) -> Iterator[None]:
    """Name the package in the error, if the body cannot import it.

    Raises:
        MissingPackageError: The body raised an `ImportError`.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(integration, package, error) from error


def check(integration: str, package: str, module: str) -> None:
    """Check that a package can be found, without importing it.

    Raises:
        MissingPackageError: The package is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingPackageError(integration, package)
