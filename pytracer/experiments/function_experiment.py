"""`pytracer.experiment`: call a Python function under several allocator settings.

The function is pickled, and each run is a new Python process that loads and calls it.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.comparison import Comparison
from pytracer.experiments.experiment_runs import Experiment

_NEW_PROCESS = (
    "import pickle, sys; file = open(sys.argv[1], 'rb'); sys.path[:] = pickle.load(file); "
    "from pytracer.experiments import function_experiment; function_experiment.call_pickled(file)"
)

_is_importing_main = False
"""Whether this is a process of an experiment that is importing the program's main module."""


def experiment(
    function: Callable[..., object],
    settings: Sequence[str],
    *,
    repeat: int = 1,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Call a function under several settings of the allocator, each time in a new process.

    The processes start like those of multiprocessing's "spawn": the function and its arguments are
    pickled, and each process imports the program's main module again. So the main module must call
    `experiment` under `if __name__ == "__main__":`. What the function prints goes to a file of the
    run. An out-of-memory error is a result, not a failure. Ctrl-C ends the current process; the
    results of earlier runs are in `output`.

    Args:
        function: A function at the top level of a module, or another object that can be pickled.
        settings: Changes to the environment's allocator settings, such as
            "expandable_segments:True", or "current" for no change. The others are compared with the
            first.
        repeat: The number of calls under each setting; every second repeat reverses the order.
        args, kwargs: The arguments of the function.
        output: The directory of the snapshots, logs and `experiment.json`, which must be new or
            empty; None: a new one, named after the time.

    Returns:
        The outcomes of all calls.

    Raises:
        ConfigError: A setting is malformed, refused by the allocator or given twice; the function
            cannot be called in a new process; `output` exists and is not empty.
        PytracerError: There is no accelerator, or a run cannot be started.
    """
    if _is_importing_main:
        raise PytracerError(
            "experiment() was called while one of its own processes was importing the main "
            'module: put the call under `if __name__ == "__main__":`'
        )
    pickled = _pickled(function, tuple(args), dict(kwargs or {}))
    with tempfile.NamedTemporaryFile(prefix="pytracer-") as file:
        for part in (sys.path, {"sys_argv": sys.argv, **_main_module()}):
            pickle.dump(part, file)
        file.write(pickled)
        file.flush()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        planned = Experiment(
            [sys.executable, *flags, "-c", _NEW_PROCESS, file.name],
            settings,
            repeat=repeat,
            output=output,
            name=f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}",
        )
        planned.prepare()
        for run in planned.runs:
            planned.run(run)
    return planned.comparison


def call_pickled(file: IO[bytes]) -> None:
    """Call the function in this process, which the experiment has started.

    The file has what multiprocessing needs to import the main module, then the function and its
    arguments, all pickled.
    """
    import multiprocessing.spawn

    from pytracer.activation import import_hook

    global _is_importing_main
    import_hook.watch()  # without an installation, which has Python start pytracer
    _is_importing_main = True
    multiprocessing.spawn.prepare(pickle.load(file))
    function, args, kwargs = pickle.load(file)
    _is_importing_main = False
    function(*args, **kwargs)


def _pickled(function: Callable[..., object], args: Any, kwargs: Any) -> bytes:
    try:
        pickled = pickle.dumps((function, args, kwargs))
    except Exception as error:  # pickling runs code of the objects
        raise ConfigError(
            f"{function!r} cannot be called in a new process ({error}): give a function at the top "
            "level of a module, and arguments that can be pickled"
        ) from error
    if b"__main__" in pickled and not _main_module():
        raise ConfigError(
            f"{function!r} exists only in this process, because no file defines it: move the "
            "function to a module, and import it"
        )
    return pickled


def _main_module() -> dict[str, str]:
    """Return where a new process finds the main module, as multiprocessing wants it.

    At a prompt and in a notebook, which have no file, the result is empty.
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": os.path.abspath(path)}
