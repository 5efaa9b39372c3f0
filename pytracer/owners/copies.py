"""Copies of what modules and optimizers have: names and numbers, nothing that keeps a tensor alive.

Only the core looks at the objects, through weak references and without giving up the GIL, so that
what another thread drops is freed at once.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import ref

from pytracer import _core

_AT_ONCE = 500  # how many modules are copied without giving up the GIL
GradientRule = tuple[bool, int, bool, bool, int, int]
"""`GradientRule` in `csrc/tensors/model_copy.h`; last, in how many other threads a pass may run."""
Part = tuple[int, int, int, int]
"""Where a tensor is: its address, bytes, device (-1: the CPU), and where the storage begins."""
NO_GRADIENTS: GradientRule = False, 0, False, False, -1, 0
Named = list[tuple[str | int, list[_core.TensorCopy]]]


@dataclass(eq=False, slots=True)
class ModuleCopy:
    """A copy of a `torch.nn.Module`: its class, and its parameters, buffers and submodules by name.

    `number` is the id of the module.
    """

    number: int
    class_name: str
    reference: "ref[Any]"
    _parameters: dict[str, _core.TensorCopy]
    _buffers: dict[str, _core.TensorCopy]
    _modules: "dict[str, ModuleCopy]"


class OptimizerCopy(NamedTuple):
    """A copy of a `torch.optim.Optimizer`.

    A group is its parameters, and its other values with tensors by name. A state is the id of its
    parameter, or None, and its values with tensors by name.
    """

    reference: "ref[Any]"
    number: int  # the id of the optimizer
    class_name: str
    groups: list[tuple[list[_core.TensorCopy], Named]]
    states: list[tuple[int | None, Named]]
    state_count: int

    @property
    def parameters(self) -> list[_core.TensorCopy]:
        """The parameters of all groups."""
        return [parameter for parameters, _ in self.groups for parameter in parameters]


def copies_of_modules(
    references: "Iterable[ref[Any]]",
    steppers: dict[int, int],
    rule: GradientRule = NO_GRADIENTS,
    notes_uses: bool = False,
) -> tuple[list[ModuleCopy], int]:
    """Return copies of modules and of their submodules, and how many tensors could not be read.

    Args:
        references: Those that were asked for come first, in this order.
        steppers: The threads that stepped parameters, by the ids of these.
        rule: Which gradients may be read.
        notes_uses: Whether the recorder notes the memory of parameters and buffers.
    """
    found: dict[int, ModuleCopy] = {}
    children: list[tuple[ModuleCopy, list[tuple[str, int]]]] = []
    waiting, unread = [*references], 0
    while waiting:
        asked = waiting[:_AT_ONCE]
        del waiting[:_AT_ONCE]
        copied, _, failed = _core.copy_models(
            sys.modules["torch"], asked, [], rule, steppers, notes_uses
        )
        unread += failed
        for reference, each in zip(asked, copied, strict=True):
            if each is None or each[0] in found:
                continue
            number, class_name, parameters, buffers, submodules = each
            copy = ModuleCopy(number, class_name, reference, parameters, buffers, {})
            found[number] = copy
            children.append((copy, [(name, child) for name, child, _ in submodules]))
            waiting.extend(child_of for _, child, child_of in submodules if child not in found)
    for copy, names in children:
        copy._modules = {name: found[child] for name, child in names if child in found}
    return [*found.values()], unread


def copy_of_optimizer(
    reference: "ref[Any]",
    thread: int | None = None,
    rule: GradientRule = NO_GRADIENTS,
    first_state: int = 0,
    notes_uses: bool = False,
) -> tuple[OptimizerCopy | None, int]:
    """Return a copy of an optimizer, and how many tensors could not be read; None: it is gone.

    `thread` steps it. Its states are copied from `first_state` on.
    """
    groups: dict[int, tuple[list[_core.TensorCopy], Named]] = {}
    states: list[tuple[int | None, Named]] = []
    parameter, state, unread, has_more = 0, first_state, 0, True
    while has_more:
        _, (copied,), failed = _core.copy_models(
            sys.modules["torch"], [], [(reference, thread, parameter, state)], rule, {}, notes_uses
        )
        unread += failed
        if copied is None:
            return None, unread
        number, class_name, some_groups, some_states, parameter, state, has_more = copied
        for group, parameters, named in some_groups:
            groups.setdefault(group, ([], named))[0].extend(parameters)
        states += some_states
    copy = OptimizerCopy(reference, number, class_name, [*groups.values()], states, state)
    return copy, unread
