"""The names of modules, parameters and buffers: their paths from the outermost module.

A path leaves out wrappers, such as the `module` of DistributedDataParallel and the `_orig_mod` of
torch.compile, so a tensor has one name with and without them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from pytracer import _core
from pytracer.owners.copies import ModuleCopy, OptimizerCopy
from pytracer.owners.weak_table import WeakTable

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""The names of the module in a wrapper: of torch.compile, FSDP1, and wrappers for checkpointing."""


def named_tensors(
    modules: list[ModuleCopy],
) -> Iterator[tuple[str, _core.TensorCopy, bool, ModuleCopy]]:
    """Yield the names of modules' parameters and buffers, the tensors, and which are buffers.

    The last value is the outermost module.

    A name is a path, as of `named_modules`, such as "layers.3.attn.q_proj.weight". A tensor of
    several modules comes more than once.
    """
    for path, module, root in named_modules(modules):
        for kind in ("_parameters", "_buffers"):
            for name, tensor in _items(module, kind):
                yield f"{path}.{name}" if path else name, tensor, kind == "_buffers", root


def named_modules(modules: list[ModuleCopy]) -> Iterator[tuple[str, ModuleCopy, ModuleCopy]]:
    """Yield the paths of known modules and of all their submodules, these, and the outermost ones.

    With several outermost modules, the paths begin with the class of theirs, and a number if two
    of them have the same class: "Actor.layers.0", "Critic#2.head". A module keeps the beginning
    that it had first: the only outermost module has none, also when a second one comes.
    """
    visited: set[int] = set()
    trees = []
    # Modules that contain each other have no outermost one, so the others come after.
    for root in [*outermost(modules), *modules]:
        if id(root) not in visited:
            tree = [*submodules(root, visited)]
            if any(_has_tensors(module) for _, module in tree):
                trees.append((root, tree))
    prefixes = PREFIXES.of([unwrapped(root) for root, _ in trees])
    for prefix, (root, tree) in zip(prefixes, trees, strict=True):
        for path, module in tree:
            yield f"{prefix}.{path}" if prefix and path else prefix or path, module, root


def outermost(modules: list[ModuleCopy]) -> list[ModuleCopy]:
    """Return the modules that no other of them contains."""
    inner = {id(child) for module in modules for _, child in _items(module, "_modules")}
    return [module for module in modules if id(module) not in inner]


class _Prefixes:
    """The beginnings of the paths in outermost modules, which stay as they were first."""

    def __init__(self) -> None:
        self._known = WeakTable[str](2**18)
        self._new: list[int] = []

    def of(self, roots: list[ModuleCopy]) -> list[str]:
        """Return the beginnings of the paths in these modules; "": none."""
        found = [self._known.get(root.number, root.reference) for root in roots]
        classes = Counter(root.class_name for root in roots)
        used, numbers = {*found} - {None}, Counter[str]()
        self._new.clear()
        for position, root in enumerate(roots):
            if found[position] is not None:
                continue
            prefix = name = "" if len(roots) == 1 else root.class_name
            if name and (classes[name] > 1 or name in used):
                while prefix == name or prefix in used:
                    numbers[name] += 1
                    prefix = f"{name}#{numbers[name]}"
            used.add(prefix)
            found[position] = prefix
            self._known.add(root.number, root.reference, prefix)
            self._new.append(root.number)
        return [prefix or "" for prefix in found]

    def forget_new(self) -> None:
        """Forget the beginnings that the last call made, because there are more modules."""
        for number in self._new:
            self._known.forget(number)


PREFIXES = _Prefixes()


def submodules(root: Any, visited: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the paths of a module, "", and of its submodules, in the order of torch's.

    A wrapper has the path of the module in it, and comes before it. Modules whose ids are in
    `visited` are left out, and those of the yielded ones are added.
    """
    visited = set() if visited is None else visited
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        yield path, module
        wrapped = wrapped_module(module)
        children = [
            (path if child is wrapped else f"{path}.{name}" if path else name, child)
            for name, child in _items(module, "_modules")
        ]
        waiting.extend(reversed(children))


def wrapped_module(module: Any) -> Any | None:
    """Return the module in a wrapper; None: it is none.

    A wrapper such as DistributedDataParallel has nothing else than a module called `module`.
    """
    children = _items(module, "_modules")
    for name, child in children:
        if name in _WRAPPED or (
            name == "module" and len(children) == 1 and not _has_tensors(module)
        ):
            return child
    return None


def unwrapped(module: Any) -> Any:
    """Return the module inside of all wrappers."""
    seen = set()
    while id(module) not in seen and (wrapped := wrapped_module(module)) is not None:
        seen.add(id(module))
        module = wrapped
    return module


def _has_tensors(module: Any) -> bool:
    return any(_items(module, kind) for kind in ("_parameters", "_buffers"))


def _items(module: Any, kind: str) -> list[tuple[str, Any]]:
    """Return a module's own parameters, buffers or submodules, without those that are None."""
    found = getattr(module, kind, None)
    if found is None:
        return []
    return [(name, value) for name, value in list(found.items()) if value is not None]


class RememberedNames:
    """The names of optimizers' parameters that their modules do not have at the moment.

    FSDP2 replaces the parameters of a module by gathered ones while the module is used; the
    optimizer keeps those that the module had. No tensor is referred to, not even weakly: torch
    refuses to swap a tensor with a weak reference, which `Module.to()` may have to do.
    """

    def __init__(self) -> None:
        self._names = WeakTable[dict[tuple[int, int], tuple[int, str]]](2**18)

    def remember(self, name_of: Callable[[int], str], optimizers: list[OptimizerCopy]) -> None:
        """Remember the names of what optimizers have, and forget what they do not have any more.

        `name_of` returns the name of a parameter by its id; "" if no module has the parameter.
        """
        for optimizer in optimizers:
            known = self._names.get(optimizer.number, optimizer.reference) or {}
            names = {
                place: found
                for place, parameter in _places(optimizer)
                if (found := (parameter.number, name_of(parameter.number)))[1]
                or (found := known.get(place, (0, "")))[0] == parameter.number
            }
            self._names.add(optimizer.number, optimizer.reference, names)

    def name_of(
        self, optimizer: OptimizerCopy, place: tuple[int, int], parameter: int
    ) -> str | None:
        """Return the name that a parameter of an optimizer had; None if it never had one.

        `place` has the number of the group, and of the parameter in it. `parameter` is its id.
        """
        known = self._names.get(optimizer.number, optimizer.reference) or {}
        number, name = known.get(place, (0, None))
        return name if number == parameter else None


class ParameterPaths:
    """The names of the parameters that modules have, at one moment. Keeps nothing alive."""

    def __init__(self, modules: list[ModuleCopy]) -> None:
        self._found: dict[int, tuple[str, ref[Any], str]] = {}
        for path, module, _ in named_modules(modules):
            for key, parameter in _items(module, "_parameters"):
                name = f"{path}.{key}" if path else key
                self._found.setdefault(parameter.number, (name, module.reference, key))

    def name_of(self, parameter: int) -> str:
        """Return the name of a parameter by its id; "" if its module does not have it any more."""
        name, module, key = self._found.get(parameter, ("", None, ""))
        is_same = module is not None and _core.parameter_number(module, key) == parameter
        return name if is_same else ""

    def has_all(self, optimizer: OptimizerCopy) -> bool:
        """Return whether each parameter of an optimizer has a name."""
        return all(self.name_of(parameter.number) for parameter in optimizer.parameters)


def _places(optimizer: OptimizerCopy) -> Iterator[tuple[tuple[int, int], _core.TensorCopy]]:
    for number, (parameters, _) in enumerate(optimizer.groups):
        for position, parameter in enumerate(parameters):
            yield (number, position), parameter
