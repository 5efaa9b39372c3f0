"""The names of parameters and buffers: their paths from the outermost module."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from weakref import ref


class Named(NamedTuple):
    """A tensor that a module has.

    Attributes:
        name: The path, such as "layers.3.attn.q_proj.weight".
        tensor: The tensor.
        is_buffer: Whether it is a buffer; else it is a parameter.
    """

    name: str
    tensor: Any
    is_buffer: bool


def named_tensors(modules: list[Any]) -> Iterator[Named]:
    """Yield the parameters and buffers of modules; a tensor of several modules more than once.

    With several outermost modules, the paths begin with the class of theirs, and a number if two
    of them have the same class: "Actor.layers.0.weight", "Critic#2.head.weight".

    Args:
        modules: The known modules; their submodules may be missing.
    """
    inner = {id(child) for module in modules for _, child in _items(module, "_modules")}
    outermost = [module for module in modules if id(module) not in inner]
    visited: set[int] = set()
    trees = []
    # Modules that contain each other have no outermost one, so the others come after.
    for root in [*outermost, *modules]:
        if id(root) not in visited and (tree := [*_tree(root, visited)]):
            trees.append((type(root).__name__, tree))
    classes = Counter(name for name, _ in trees)
    numbers: Counter[str] = Counter()
    for name, tree in trees:
        numbers[name] += 1
        prefix = ""
        if len(trees) > 1:
            prefix = f"{name}#{numbers[name]}." if classes[name] > 1 else f"{name}."
        for named in tree:
            yield named._replace(name=prefix + named.name)


def _tree(root: Any, visited: set[int]) -> Iterator[Named]:
    """Yield what a module and its submodules have, in the order of `named_parameters()`."""
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        for kind in ("_parameters", "_buffers"):
            for name, tensor in _items(module, kind):
                yield Named(path + name, tensor, kind == "_buffers")
        children = [(f"{path}{name}.", child) for name, child in _items(module, "_modules")]
        waiting.extend(reversed(children))


def _items(module: Any, kind: str) -> list[tuple[str, Any]]:
    """Return a module's own parameters, buffers or submodules, without those that are None."""
    found = getattr(module, kind, None)
    if found is None:
        return []
    return [(name, value) for name, value in list(found.items()) if value is not None]


class RememberedNames:
    """The names of parameters that their modules do not have at the moment.

    FSDP2 replaces the parameters of a module by gathered ones while the module is used; the
    optimizer keeps those that the module had.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._names: dict[int, tuple[ref[Any], str]] = {}

    def remember(self, named: Iterable[Named]) -> None:
        """Remember the names of parameters, and forget the parameters that are gone."""
        names: dict[int, tuple[ref[Any], str]] = {}
        for name, tensor, is_buffer in named:
            if not is_buffer:
                names.setdefault(id(tensor), (ref(tensor), name))
        for key, known in list(self._names.items()):
            if known[0]() is not None:
                names.setdefault(key, known)
        self._names = names

    def name_of(self, tensor: Any) -> str | None:
        """Return the name that a parameter had; None if it never had one."""
        reference, name = self._names.get(id(tensor), (None, None))
        return name if reference is not None and reference() is tensor else None
