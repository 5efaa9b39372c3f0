"""A stand-in environment for hooks: a torch, a compiler and all folders, in a temporary folder."""

import fcntl
import grp
import hashlib
import os
import pwd
import stat
import time
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytracer.backends.hook_attach import Hooks
from pytracer.backends.hook_build import WAIT_SECONDS, HookBuilder, Probe
from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.hook_folders import HookFolders, sealed
from pytracer.backends.ready_hooks import FOLDER, ReadyHook, write_index
from pytracer.backends.running_torch import TorchBuild

# This stand-in for a compiler logs its arguments and writes an output file. It fails while the file
# `broken` exists, and rejects C++20 while the file `old` exists.
COMPILER = """#!/bin/sh
echo "$@" >> "{root}/compiler.log"
while [ $# -gt 0 ]; do
  case "$1" in
    -std=c++20)
      if [ -e "{root}/old" ]; then echo "error: unrecognized option '$1'" >&2; exit 1; fi ;;
    -o) output=$2 ;;
  esac
  shift
done
if [ -e "{root}/broken" ]; then
  printf 'cpu.cpp: In function\\ncpu.cpp:3:1: error: boom\\nmore\\n' >&2
  echo half > "$output"
  exit 1
fi
echo hook > "$output"
"""


STRANGER = 12345  # a user id that no user has


def accept(backend: str, hook: Path) -> None:
    """Accept every hook."""


@dataclass
class World:
    """The environment that hooks depend on."""

    root: Path  # the folder that contains all other folders
    torch: TorchBuild = field(init=False)  # the torch to compile for
    environment: dict[str, str] = field(init=False)  # the environment variables of the processes
    attached: list[str] = field(default_factory=list)  # the files that the core was asked to attach
    core: types.ModuleType = field(init=False)  # a stand-in for the C++ core

    def __post_init__(self) -> None:
        self.torch = TorchBuild("9.9.0", self.root / "torch", True)
        for path, text in {
            self.source / "hooks" / "hook_abi.h": "#define ABI 1\n",
            self.source / "hooks/cpu.cpp": '#include <c10/core/A.h>\n#include "hook_abi.h"\n',
            self.include / "c10/core/A.h": "#include <vector>\n#  include <c10/core/B.h>\n",
            self.include / "c10/core/B.h": '#include "near.h"\n#include <c10/core/A.h>\n',
            self.include / "c10/core/near.h": "int near;\n",
            self.include / "c10/core/unrelated.h": "int unrelated;\n",
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.root / "tmp").mkdir()
        (self.root / "c++").write_text(COMPILER.format(root=self.root))
        (self.root / "c++").chmod(0o755)
        self.environment = {
            "CXX": str(self.root / "c++"),
            "HOME": str(self.root / "home"),
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self.root / "tmp"),
            "XDG_CACHE_HOME": str(self.root / "xdg"),
        }
        self.core = types.ModuleType("pytracer._core")
        self.core.attach_hook = self._attach_hook  # type: ignore[attr-defined]
        self.core.frame_walk_problem = lambda: None  # type: ignore[attr-defined]

    def _attach_hook(self, path: bytes) -> bool:
        self.attached.append(os.fsdecode(path))
        return True

    @property
    def source(self) -> Path:
        """The folder of the hooks' sources, as in a checkout."""
        return self.root / "csrc"

    @property
    def include(self) -> Path:
        """The folder of torch's headers."""
        return self.torch.root / "include"

    @property
    def cache(self) -> Path:
        """The user's cache folder."""
        return self.root / "xdg" / "pytracer"

    @property
    def private(self) -> Path:
        """The private temporary folder."""
        return self.root / "tmp" / f"pytracer-{os.geteuid()}"

    @property
    def package(self) -> Path:
        """The folder of the installed package's prebuilt hooks."""
        return self.root / "package" / FOLDER

    @property
    def compilations(self) -> list[str]:
        """The arguments of each run of the compiler."""
        log = self.root / "compiler.log"
        return log.read_text().splitlines() if log.exists() else []

    def files(self) -> set[Path]:
        """Return all files and folders except the compiler's log."""
        return {path for path in self.root.rglob("*") if path.name != "compiler.log"}

    def folders(self) -> HookFolders:
        """Return the folders as a new process finds them."""
        return HookFolders(self.environment, [self.root / "package"])

    def compiler(self) -> HookCompiler:
        """Return the compiler of a new process."""
        return HookCompiler(self.folders(), environment=self.environment, torch=lambda: self.torch)

    def builder(self, probe: Probe = accept, wait_s: float = WAIT_SECONDS) -> HookBuilder:
        """Return the builder of a new process."""
        return HookBuilder(self.folders(), self.compiler(), probe, wait_s)

    def hooks(self, probe: Probe = accept, wait_s: float = WAIT_SECONDS) -> Hooks:
        """Return the hooks of a new process, which has attached nothing."""
        return Hooks(self.builder(probe, wait_s), lambda: self.core, watch_oom=lambda _: None)

    @property
    def hook_name(self) -> str:
        """The CPU hook's file name."""
        return self.compiler().file_name("cpu")

    def put_ready_hook(self, *releases: str) -> Path:
        """Add a hook for this environment's torch to the package, as a wheel has it."""
        self.package.mkdir(parents=True, exist_ok=True)
        path = self.package / "cpu-0.so"
        path.write_text("a prebuilt hook")
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        compiler = self.compiler()
        write_index(
            self.package,
            [
                ReadyHook("cpu", release, compiler.key("cpu", release), path.name, sha256)
                for release in releases or [self.torch.version]
            ],
        )
        return path

    def put_hook(self, directory: Path) -> Path:
        """Write a hook for this environment's torch into `directory`, as `build` would."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / self.hook_name
        path.write_bytes(sealed(b"a hook"))
        path.chmod(0o755)
        return path


def set_age(path: Path, seconds: int = 60) -> None:
    """Give a file or folder the time of modification of some seconds ago."""
    now_ns = time.time_ns()
    os.utime(path, ns=(now_ns, now_ns - seconds * 10**9))


class OtherBuilder:
    """Another process that holds the node's lock.

    This process can play it, because flock distinguishes open files, not processes.
    """

    def __init__(self, world: World) -> None:
        world.private.mkdir(mode=0o700, exist_ok=True)
        path = world.private / f"{world.hook_name}.lock"
        self.reason_file = path.with_suffix(".failed")
        self._lock = path.open("a+")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def finish(self, failure: str = "") -> None:
        """Release the lock; if the build failed, write the reason first."""
        if failure:
            self.reason_file.write_text(failure)
        self._lock.close()


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `path` to another user: with `chown` as root, else only in the results of `fstat`."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        return
    original, given = os.fstat, path.lstat()

    def fstat(descriptor: int) -> os.stat_result:
        info = original(descriptor)
        if not os.path.samestat(info, given):
            return info
        values = list(info)
        values[stat.ST_UID] = STRANGER
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", fstat)


def set_group(patch: pytest.MonkeyPatch, name: str, members: list[str]) -> None:
    """Let the group of this user's files have this name and these other members."""
    user = pwd.getpwuid(os.geteuid())
    own = pwd.struct_passwd((*user[:3], os.getegid(), *user[4:]))
    patch.setattr(pwd, "getpwuid", lambda _: own)
    group = grp.struct_group((name.format(user.pw_name), "x", own.pw_gid, members))
    patch.setattr(grp, "getgrgid", lambda _: group)
