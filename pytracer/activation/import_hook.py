"""When to start the tracing that the environment asks for: `PYTRACER=1 python train.py`.

`startup/_torch_pytracer.py` calls this module in two ways, because neither is enough:

- A line in `startup/torch_pytracer.pth`, which runs when an interpreter starts, calls `watch()` if
  the environment asks for anything. Tracing starts when the import of torch is complete.
- An entry point in torch's group `torch.backends` calls `autoload()` near the end of `import
  torch`.

`pytracer.activation.environment` then starts the tracing. A failure is logged and not raised.
docs/explanation/processes.md says what each of them misses.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_WATCHED = ("torch", "torch_npu", "verl.utils.profiler.profile")
"""Modules after whose import tracing may start. torch_npu imports torch and is imported by it, or
comes later and changes what "auto" means. verl's module reports steps."""

_followers: "dict[str, Callable[[ModuleType], object]]" = {}
_importing: set[str] = set()
_imported: set[str] = set()


def watch() -> None:
    """Have `begin()` called when torch or another watched module is imported; idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def after_import(name: str, function: "Callable[[ModuleType], object]") -> None:
    """Have a function called with a module when it was imported, before anything uses it."""
    watch()
    _followers[name] = function


def autoload() -> None:
    """Begin near the end of `import torch`, when the parts that pytracer needs are imported."""
    if "torch" not in _importing:
        watch()  # torch_npu may be imported later
        _imported.add("torch")
        begin()


def begin() -> None:
    """Do what the environment asks for, unless a watched module is still being imported."""
    if _importing or "torch" not in _imported:
        return
    try:
        from pytracer.activation import environment

        environment.begin(begin)
    except Exception as error:
        _warn(
            f"the recording did not begin, or is incomplete: {error!r}. The job continues. Please "
            "report this"
        )


def _warn(message: str) -> None:
    try:
        from pytracer.log import warn_once

        warn_once(message)
    except Exception:  # pytracer is only partly installed
        pass


class _Finder:
    """Finds modules by the other finders, and notes when they have been imported."""

    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        is_wanted = name in _WATCHED or name in _followers
        if not is_wanted or name in self._searching:
            return None
        self._searching.add(name)  # another finder may ask all finders too
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)  # some old finders have none
                spec: ModuleSpec | None = (
                    find(name, path, target) if find and finder is not self else None
                )
                if spec is not None:
                    if spec.loader is not None:
                        _note_import(spec.loader, name)
                    return spec
            return None
        finally:
            self._searching.discard(name)


def _note_import(loader: "Loader", name: str) -> None:
    """Have `begin()` called after the import.

    The loader itself is kept, because other code looks at its type. A loader that lacks
    `exec_module`, or that cannot be changed, is left as it is. torch's entry point then starts the
    tracing.
    """
    try:
        execute = loader.exec_module
    except Exception:  # an old loader has only `load_module`
        return

    def exec_module(module: "ModuleType") -> None:
        getattr(loader, "__dict__", {}).pop("exec_module", None)  # the loader is unchanged again
        _importing.add(name)
        try:
            execute(module)
            _imported.add(name)
            if name in _followers:
                _followers[name](module)
        finally:  # torch may be imported although torch_npu failed
            _importing.discard(name)
            begin()

    try:  # noqa: SIM105 (contextlib would cost an import)
        loader.exec_module = exec_module  # type: ignore[method-assign]
    except Exception:
        pass
