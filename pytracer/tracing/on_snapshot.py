"""The function that the option `on_snapshot` names as "package.module:function"."""

import importlib.util
import itertools
import operator
import sys
from collections.abc import Callable

from pytracer.errors import ConfigError
from pytracer.log import warn_once
from pytracer.text import brief
from pytracer.tracing.option_forms import OnSnapshot
from pytracer.tracing.options import variable


def imported(name: str) -> Callable[[str], object]:
    """Import the module of "package.module:function" and return the function."""
    module, _, function = name.partition(":")
    found: Callable[[str], object] = operator.attrgetter(function)(importlib.import_module(module))
    return found


def check_function(name: OnSnapshot, is_given: bool) -> None:
    """Find out now, not when memory runs out, whether `on_snapshot` names a function.

    A variable may be read in the middle of `import torch`, where nothing else may be imported, and
    before the program has changed `sys.path`. A problem with it is therefore only logged, and may
    be gone when the function is needed. The code gives the option if `is_given`: then it is a
    ConfigError.
    """
    if not isinstance(name, str):
        return
    problem = problem_of_function(name, may_import=is_given)
    if problem is not None and is_given:
        raise ConfigError(
            f"on_snapshot={brief(name)} cannot be used: {problem}; give a function, or "
            '"package.module:function" of a module that can be imported, or None'
        )
    if problem is not None:
        warn_once(
            f"{variable('on_snapshot')}={brief(name)} cannot be used: {problem}. Snapshots are "
            "written, but no function is called with their paths. Correct the variable, or "
            "add the module's folder to PYTHONPATH"
        )


def problem_of_function(name: str, may_import: bool) -> str | None:
    """Return why "package.module:function" cannot be used; None: no problem is known.

    Without `may_import` no code of a module runs: the function is looked for only in a module that
    was imported already. It is never looked for in a module that is still being imported.
    """
    module, _, function = name.partition(":")
    try:
        found = sys.modules.get(module) or (importlib.import_module(module) if may_import else None)
        if found is None:
            parts = itertools.accumulate(module.split("."), "{}.{}".format)
            outermost = next(part for part in parts if part not in sys.modules)
            has_spec = importlib.util.find_spec(outermost) is not None
            return None if has_spec else f"No module named {outermost!r}"
        spec = getattr(found, "__spec__", None)
        if module == "__main__" or getattr(spec, "_initializing", False):
            return None
        if not callable(operator.attrgetter(function)(found)):
            return f"{function} is not a function"
    except (Exception, SystemExit) as error:  # an import may raise anything
        return str(error) or repr(error)
    return None
