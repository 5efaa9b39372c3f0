"""The rank of this process in its job, from the launcher's variables or torch's process group."""

import functools
import os
import socket
import sys
from dataclasses import dataclass
from typing import Any

from pytracer.tracing.option_forms import Ranks

# Variables of the rank and of the number of ranks: torchrun's (verl and Ray Train set them too),
# Open MPI's, those of PMI (MPICH, Intel MPI) and of MVAPICH2.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)
# srun's. The script of a batch job has a rank too, but is not one of several: it has no step.
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True)
class Rank:
    """The number of a process in its job."""

    rank: int | None  # from 0; None: the process is not one of several
    world_size: int | None  # None: unknown

    @property
    def is_one_of_several(self) -> bool:
        """Whether other processes may write files of the same name."""
        return self.rank is not None and self.world_size != 1

    def selected(self, ranks: Ranks) -> bool:
        """Return whether the option, in verl's sense, selects this process; without a rank, yes."""
        return self.rank is None or isinstance(ranks, str) or self.rank in (ranks or (0,))

    def name(self, role: str | None) -> str:
        """Return the name of the process in file names; without a rank it is not called rank 0."""
        if self.rank is not None:
            return f"rank{self.rank}"
        return "_".join(filter(None, (role, socket.gethostname())))


_last_group: Rank | None = None  # the rank in the process group that was destroyed last


def _forget_the_parents() -> None:
    global _last_group
    _last_group = None


os.register_at_fork(after_in_child=_forget_the_parents)


def current() -> Rank:
    """Return the present rank of this process; launchers such as Ray set it after the start.

    torchrun's variables are used, unless torch's process group has more ranks than the variables
    say: then the variables are those of the node.
    """
    named, group = _from(*_LAUNCHERS[0]), _group() or _last_group
    if group is not None:
        named_size, group_size = (named and named.world_size) or 0, group.world_size or 0
        return named if named is not None and named_size >= group_size else group
    for launcher in _LAUNCHERS:
        if (found := _from(*launcher)) is not None:
            return found
    found = _from(*_SLURM)
    return found if found is not None and found.world_size is not None else Rank(None, None)


def remember_group() -> None:
    """Keep a rank that only the process group knows after the group is destroyed; idempotent.

    torch asks programs to destroy the group before they end, when most files are written.
    """
    distributed = sys.modules.get("torch.distributed")
    destroy = getattr(distributed, "destroy_process_group", None)
    if destroy is None or hasattr(destroy, "_pytracer"):
        return

    @functools.wraps(destroy)
    def remembering(*args: Any, **kwargs: Any) -> Any:
        global _last_group
        _last_group = _group() or _last_group
        return destroy(*args, **kwargs)

    remembering._pytracer = True  # type: ignore[attr-defined]
    for module in (distributed, sys.modules.get("torch.distributed.distributed_c10d")):
        if getattr(module, "destroy_process_group", None) is destroy:
            module.destroy_process_group = remembering  # type: ignore[union-attr]


def _group() -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return Rank(distributed.get_rank(), distributed.get_world_size())
    except Exception:  # a torch that is half imported, or being torn down
        pass
    return None


def _from(rank: str, world_size: str) -> Rank | None:
    number = _number(rank)
    return None if number is None else Rank(number, _number(world_size))


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
