"""When to start tracing that the environment asks for: `PYTRACER=1 python train.py`.

Two ways lead here, by `startup/_torch_pytracer.py`, since neither is enough:

- A line in `startup/torch_pytracer.pth`, run at each interpreter's start, calls `watch()` if the
  environment asks for anything; tracing starts when torch has been imported completely.
- An entry point in torch's group `torch.backends` calls `autoload()` near the end of `import
  torch`. It serves those who set the variable later, in a notebook, and installations whose `.pth`
  files Python does not read (`pip install --target`). torch skips it if torch_npu was imported
  first, or under `TORCH_DEVICE_BACKEND_AUTOLOAD=0`.

What is done then is in `pytracer.environment`. It is said, not raised, if that fails.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_WATCHED = ("torch", "torch_npu", "verl.utils.profiler.profile")
"""torch_npu imports torch and is imported by it, or comes later and changes what "auto" means.
verl's module tells of steps."""

_importing: set[str] = set()
_imported: set[str] = set()


def watch() -> None:
    """Has `begin()` called when torch has been imported, and what else is watched; idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def autoload() -> None:
    """In the middle of `import torch`, of which what we need is there."""
    if "torch" not in _importing:
        watch()  # for torch_npu
        _imported.add("torch")
        begin()


def begin() -> None:
    """Does what the environment asks for, unless a module that matters is still being imported."""
    if _importing or "torch" not in _imported:
        return
    try:
        from pytracer import environment

        environment.begin()
    except Exception as error:
        _say(f"the environment's tracing failed: {error!r}")


def _say(message: str) -> None:
    try:
        from pytracer.notices import say_once

        say_once(message)
    except Exception:  # half uninstalled
        pass


class _Finder:
    """Finds nothing by itself: notes when what the other finders find has been imported."""

    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if name not in _WATCHED or name in self._searching:
            return None
        self._searching.add(name)  # another finder may ask all finders, as this one does
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)  # some old ones have none
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
    """Keeps the loader, whose type and methods others look at."""
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        getattr(loader, "__dict__", {}).pop("exec_module", None)  # it is as it was
        _importing.add(name)
        try:
            execute(module)
            _imported.add(name)
        finally:  # torch may have been imported by a torch_npu that failed
            _importing.discard(name)
            begin()

    try:  # noqa: SIM105 (which would import contextlib)
        loader.exec_module = exec_module  # type: ignore[method-assign]
    except Exception:  # it cannot be changed; torch's entry point is left
        pass
