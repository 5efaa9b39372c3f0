"""Caches of compiled hooks that someone tampers with.

The hook for the running torch is in the cache. Then it is truncated, emptied, overwritten, replaced
by other libraries, by one that runs code when it is loaded, by links, pipes and folders; or the
file, its folder or the folder above gets another owner, or a mode that lets others write; or the
folder becomes read-only, is removed while jobs run, or is a file. In some jobs compiling is
forbidden.
"""

import ctypes
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from attack import Budget, Found
from jobs import User

from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.hook_folders import sealed

PROMISE = (
    "The job runs to its end, recorded or untraced with a reason, and a library that others could "
    "write or exchange, or that lies in a folder that they could, is never loaded."
)
DEVICE = "cpu"
SECONDS = 40

OTHERS_ID = 12345
EVIL = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run() { close(open(%s, O_CREAT | O_WRONLY, 0600)); }
"""
Tamper = Callable[[Path, random.Random], object]  # called with the hook, and random numbers


def zero_page(hook: Path, rng: random.Random) -> None:
    """Lose a page, as interrupted copies and bad disks do; the loader would map it."""
    content = bytearray(hook.read_bytes())
    begin = rng.randrange(0, len(content), 4096)
    content[begin : begin + 4096] = bytes(len(content[begin : begin + 4096]))
    hook.write_bytes(content)


def damage_head(hook: Path, rng: random.Random) -> None:
    """Damage only the head, which a loader checks; damaged code would run."""
    content = bytearray(hook.read_bytes())
    content[rng.randrange(20)] ^= rng.randrange(1, 256)
    hook.write_bytes(content)


def other_library(hook: Path, rng: random.Random) -> None:
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    small = [
        Path(name)
        for name in sorted({*loaded})
        if ".so" in name and os.path.isfile(name) and os.path.getsize(name) < 2**21
    ]
    shutil.copy(rng.choice(small), hook)


def replaced(make: Callable[[Path], object]) -> Tamper:
    """Put something else in the place of the hook."""
    return lambda hook, _: (hook.unlink(), make(hook))


def no_folder(hook: Path, _: random.Random) -> None:
    shutil.rmtree(hook.parent)
    hook.parent.write_text("a file")


def vanishing(hook: Path, rng: random.Random) -> None:
    threading.Timer(rng.uniform(0, 0.5), shutil.rmtree, (hook.parent, True)).start()


DAMAGES: dict[str, Tamper] = {
    "truncated": lambda hook, rng: os.truncate(hook, rng.randrange(hook.stat().st_size)),
    "overwritten": lambda hook, rng: hook.write_bytes(rng.randbytes(rng.choice((0, 1, 64, 5000)))),
    "a page of zeros": zero_page,
    "a damaged head": damage_head,
    "another library": other_library,
    "a link to nothing": replaced(lambda hook: hook.symlink_to("/nowhere")),
    "a link to itself": replaced(lambda hook: hook.symlink_to(hook)),
    "a pipe": replaced(os.mkfifo),
    "a folder": replaced(Path.mkdir),
    "a folder that is read-only": lambda hook, rng: hook.parent.chmod(
        rng.choice((0o500, 0o000, 0o400))
    ),
    "no folder": no_folder,
    "a folder that vanishes": vanishing,
}


def link(hook: Path, _: random.Random) -> None:
    hook.symlink_to(hook.rename(hook.parents[2] / "evil.so"))


def move_folder(hook: Path) -> Path:
    """Replace the folder by a link, which is the user's choice; return where it is then."""
    elsewhere = hook.parents[2] / f"moved{time.monotonic_ns()}"
    hook.parent.rename(elsewhere)
    hook.parent.symlink_to(elsewhere)
    return elsewhere


def give_away(place: Path) -> None:
    os.chown(place, OTHERS_ID, OTHERS_ID, follow_symlinks=False)


def let_others_write(place: Path, rng: random.Random) -> None:
    """A sticky bit would protect the entries, and a group that is the user alone is no other."""
    if os.geteuid() == 0 and rng.random() < 0.3:
        os.chown(place, -1, OTHERS_ID)
        place.chmod(0o775)
    else:
        place.chmod(rng.choice((0o777, 0o722)))


# The hook is the evil library.
OF_OTHERS: dict[str, Tamper] = {
    "a link": link,
    "a link of the folder to an open one": lambda hook, _: move_folder(hook).chmod(0o777),
    "others may write": lambda hook, rng: hook.chmod(rng.choice((0o777, 0o775, 0o722, 0o666))),
    "others may write in the folder": lambda hook, rng: let_others_write(hook.parent, rng),
    "others may exchange the folder": lambda hook, rng: let_others_write(hook.parents[1], rng),
}
OF_ANOTHER: dict[str, Tamper] = {
    "of another": lambda hook, _: give_away(hook),
    "the folder of another": lambda hook, _: give_away(hook.parent),
    "the folder above of another": lambda hook, _: give_away(hook.parents[1]),
    "a link of another": lambda hook, _: (move_folder(hook), give_away(hook.parent)),
}


def evil_library(place: Path) -> tuple[Path, Path]:
    """Compile a library that leaves a mark when it is loaded; return the library and the mark."""
    library, mark = place / "evil.so", place / "loaded"
    source = place / "evil.c"
    source.write_text(EVIL % f'"{mark}"')
    command = [*HookCompiler().find_command(), "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    ctypes.CDLL(str(library))
    assert mark.exists(), "the library must leave a mark, but does not"
    mark.unlink()
    # The file that will be loaded has the hash of a good hook. The first file stays mapped here.
    good = place / "sealed.so"
    good.write_bytes(sealed(library.read_bytes()))
    return good, mark


def attack(budget: Budget) -> Found:
    rng, found = budget.rng, Found("jobs with a cache tampered with")
    user = User(budget.folder / "user")
    evil, mark = evil_library(budget.folder)
    good = user.keep_hook(found)
    (name,) = (path.name for path in good.glob("pytracer_cpu-*.so"))
    never_loaded = {**OF_OTHERS, **OF_ANOTHER}
    if os.geteuid() != 0:
        never_loaded = OF_OTHERS
        found.skipped.append("files of other users: only root can make them")
    tampers = {**DAMAGES, **never_loaded}
    found.count("kinds of tampering", len(tampers))
    for number in found.turns(budget):
        # Both folders that pytracer itself chooses are unchanged, or the private one is empty.
        for place in (user.cache, user.folder / "tmp" / f"pytracer-{os.geteuid()}"):
            _remove(place)
        os.chown(user.cache.parent, os.geteuid(), os.getegid())
        user.cache.parent.chmod(0o700)
        shutil.copytree(good, user.cache)
        user.cache.chmod(0o700)
        kind = [*tampers][number % len(tampers)]
        if kind in never_loaded:
            shutil.copy(evil, user.cache / name)
        tampers[kind](user.cache / name, rng)
        build = rng.choice(("never",) * 5 + ("auto",))
        ended = user.run(PYTRACER_BUILD=build)
        problems = ended.problems()
        if not ended.is_recorded and not any("pytracer" in line for line in ended.lines):
            problems.append("it was not recorded, and no line says why")
        if kind in never_loaded and mark.exists():
            problems.append("the library of others was loaded")
        mark.unlink(missing_ok=True)
        what = f"seed {budget.seed}, job {number} ({kind}, PYTRACER_BUILD={build})"
        found.fail(what, problems)
        found.count("jobs recorded all the same", ended.is_recorded)
        found.count("jobs untraced with a reason", not ended.is_recorded)
    return found


def _remove(place: Path) -> None:
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.exists():
        place.chmod(0o700)
        shutil.rmtree(place)
