"""Which source files are the program's, and not those of torch or of the standard library."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pytracer.reading.snapshot import Stacks

_PACKAGE = re.compile(r"(?:torch|torch_npu|functorch)[/\\]")

# Files that do not belong to the program, wherever torch is: installed packages of torch, code that
# torch generates, the standard library, through which torch calls its own code (contextlib, copy,
# threading), and the part of pytracer that calls the program, as a decorator does.
_OTHERS = re.compile(
    rf"[/\\](?:site|dist)-packages[/\\]{_PACKAGE.pattern}"
    r"|[/\\]pytracer[/\\](?:tracing|integrations)[/\\]\w+\.py$"
    r"|[/\\]torchinductor_[^/\\]*[/\\]"
    r"|^<eval_with_key>"
    r"|^<frozen "
    r"|[/\\]lib(?:64)?[/\\]python\d[\d.]*t?[/\\](?!(?:site|dist)-packages[/\\])"
)

# Functions of torch that are on many stacks, and their files: they tell in which folder torch is,
# where it is not installed in site-packages.
_TORCHS_FUNCTIONS = [
    (re.compile(rf"((?:.*[/\\])?)torch[/\\]{file}\.py", re.DOTALL), frozenset(names))
    for file, *names in (
        (r"nn[/\\]modules[/\\]module", "_call_impl", "_wrapped_call_impl"),
        (r"autograd[/\\]graph", "_engine_run_backward"),
        (r"autograd[/\\]function", "apply"),
        (r"_tensor", "backward", "wrapped", "__torch_function__"),
        (r"_ops", "__call__"),
        (r"optim[/\\]optimizer", "wrapper", "_use_grad", "profile_hook_step", "zero_grad"),
        (r"utils[/\\]_contextlib", "decorate_context"),
        (r"utils[/\\]checkpoint", "checkpoint", "unpack_hook"),
        (r"utils[/\\]data[/\\]dataloader", "__next__"),
        (r"utils[/\\]data[/\\]_utils[/\\]\w+", "fetch", "pin_memory", "default_collate"),
        (r"_dynamo[/\\]eval_frame", "compile_wrapper", "_fn"),
    )
]


@dataclass(frozen=True)
class ProgramFiles:
    """The source files of a program: `filename in files` tells whether a Python file is one.

    Attributes:
        torch_parents: The folders with torch's packages, each with its last separator, as in
            "/opt/pytorch/". Installed packages of torch are known without them.
    """

    torch_parents: frozenset[str]

    @classmethod
    def outside(cls, torch_folders: Iterable[str]) -> "ProgramFiles":
        """Return the source files outside the folders of torch's packages."""
        return cls(frozenset(map(_parent, torch_folders)))

    def __contains__(self, filename: str) -> bool:
        """Return whether a Python file is outside torch's packages and the standard library."""
        return _OTHERS.search(filename) is None and not any(
            filename[: found.start()] in self.torch_parents for found in _PACKAGE.finditer(filename)
        )


def program_files(stacks: Stacks) -> ProgramFiles:
    """Return the source files of the program that has the stacks.

    Files of pytracer name the folders of torch's packages since format 1.9. In other files, the
    frames of functions that torch is known to have tell the folder.
    """
    parents = set(ProgramFiles.outside(stacks.torch_folders).torch_parents)
    for index in np.unique(stacks.filename).tolist():
        filename = stacks.strings[index]
        for pattern, names in _TORCHS_FUNCTIONS:
            found = pattern.fullmatch(filename)
            if found is None or found[1] in parents:
                continue
            of_file = np.unique(stacks.name[stacks.filename == index]).tolist()
            if not names.isdisjoint(stacks.strings[name] for name in of_file):
                parents.add(found[1])
    return ProgramFiles(frozenset(parents))


def _parent(folder: str) -> str:
    """Return the folder that a folder is in, with its last separator."""
    folder = folder.rstrip("/\\")
    return folder[: max(folder.rfind("/"), folder.rfind("\\")) + 1]


def common_files(files: Iterable[ProgramFiles]) -> ProgramFiles:
    """Return the files that are the program's in each of several snapshots."""
    return ProgramFiles(frozenset[str]().union(*(each.torch_parents for each in files)))
