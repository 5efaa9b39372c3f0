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

from attack import Budget, Outcome
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
# The arguments are the hook, random numbers and the evil library.
Tamper = Callable[[Path, random.Random, Path], object]


def truncate(hook: Path, rng: random.Random, _: Path) -> None:
    os.truncate(hook, rng.randrange(hook.stat().st_size))


def overwrite(hook: Path, rng: random.Random, _: Path) -> None:
    hook.write_bytes(rng.randbytes(rng.choice((0, 1, 64, 5000))))


def zero_page(hook: Path, rng: random.Random, _: Path) -> None:
    """Lose a page, as interrupted copies and bad disks do; the loader would map it."""
    content = bytearray(hook.read_bytes())
    begin = rng.randrange(0, len(content), 4096)
    content[begin : begin + 4096] = bytes(len(content[begin : begin + 4096]))
    hook.write_bytes(content)


def damage_head(hook: Path, rng: random.Random, _: Path) -> None:
    """Damage only the head, which a loader checks; damaged code would run."""
    content = bytearray(hook.read_bytes())
    content[rng.randrange(20)] ^= rng.randrange(1, 256)
    hook.write_bytes(content)


def other_library(hook: Path, rng: random.Random, _: Path) -> None:
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    small = [
        Path(name)
        for name in sorted({*loaded})
        if ".so" in name and os.path.isfile(name) and os.path.getsize(name) < 2**21
    ]
    shutil.copy(rng.choice(small), hook)


def link(hook: Path, _: random.Random, evil: Path) -> None:
    hook.unlink()
    hook.symlink_to(evil)


def link_to_nothing(hook: Path, _: random.Random, evil: Path) -> None:
    hook.unlink()
    hook.symlink_to(hook if len(str(evil)) % 2 else "/nowhere")


def link_of_folder(hook: Path, _: random.Random, evil: Path) -> None:
    """Replace the folder by a link, which is the user's choice, to a folder that must be safe."""
    elsewhere = evil.parent / f"open{time.monotonic_ns()}"
    shutil.copytree(hook.parent, elsewhere)
    shutil.copy(evil, elsewhere / hook.name)
    elsewhere.chmod(0o777)
    shutil.rmtree(hook.parent)
    hook.parent.symlink_to(elsewhere)


def pipe(hook: Path, _: random.Random, __: Path) -> None:
    hook.unlink()
    os.mkfifo(hook)


def folder(hook: Path, _: random.Random, __: Path) -> None:
    hook.unlink()
    hook.mkdir()


def others_may_write(hook: Path, rng: random.Random, evil: Path) -> None:
    shutil.copy(evil, hook)
    hook.chmod(rng.choice((0o777, 0o775, 0o722, 0o666)))


def _let_others_write(place: Path, rng: random.Random) -> None:
    """A sticky bit would protect the entries, and a group that is the user alone is no other."""
    if os.geteuid() == 0 and rng.random() < 0.3:
        os.chown(place, -1, OTHERS_ID)
        place.chmod(0o775)
    else:
        place.chmod(rng.choice((0o777, 0o722)))


def others_may_write_in_folder(hook: Path, rng: random.Random, evil: Path) -> None:
    shutil.copy(evil, hook)
    _let_others_write(hook.parent, rng)


def of_another(hook: Path, _: random.Random, evil: Path) -> None:
    shutil.copy(evil, hook)
    os.chown(hook, OTHERS_ID, OTHERS_ID)


def folder_of_another(hook: Path, _: random.Random, evil: Path) -> None:
    shutil.copy(evil, hook)
    os.chown(hook.parent, OTHERS_ID, OTHERS_ID)


def others_may_exchange_folder(hook: Path, rng: random.Random, evil: Path) -> None:
    shutil.copy(evil, hook)
    _let_others_write(hook.parent.parent, rng)


def folder_above_of_another(hook: Path, _: random.Random, evil: Path) -> None:
    shutil.copy(evil, hook)
    os.chown(hook.parent.parent, OTHERS_ID, OTHERS_ID)


def link_of_another(hook: Path, _: random.Random, evil: Path) -> None:
    """Replace the folder by another user's link to a folder of the user."""
    elsewhere = evil.parent / f"own{time.monotonic_ns()}"
    shutil.copytree(hook.parent, elsewhere)
    shutil.copy(evil, elsewhere / hook.name)
    shutil.rmtree(hook.parent)
    hook.parent.symlink_to(elsewhere)
    os.chown(hook.parent, OTHERS_ID, OTHERS_ID, follow_symlinks=False)


def read_only(hook: Path, rng: random.Random, _: Path) -> None:
    hook.parent.chmod(rng.choice((0o500, 0o000, 0o400)))


def no_folder(hook: Path, _: random.Random, __: Path) -> None:
    shutil.rmtree(hook.parent)
    hook.parent.write_text("a file")


def vanishing(hook: Path, rng: random.Random, _: Path) -> None:
    threading.Timer(rng.uniform(0, 0.5), shutil.rmtree, (hook.parent, True)).start()


NEVER_LOADED: tuple[Tamper, ...] = (
    *(link, link_of_folder, others_may_write, others_may_write_in_folder),
    others_may_exchange_folder,
    *(of_another, folder_of_another, folder_above_of_another, link_of_another),
)
OF_ANOTHER = (of_another, folder_of_another, folder_above_of_another, link_of_another)
TAMPERS: tuple[Tamper, ...] = (
    *(
        truncate,
        overwrite,
        zero_page,
        damage_head,
        other_library,
        link_to_nothing,
        pipe,
        folder,
        read_only,
    ),
    *(no_folder, vanishing, *NEVER_LOADED),
)


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


def attack(budget: Budget) -> Outcome:
    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    outcome = Outcome(0, "jobs with a cache tampered with", [], {})
    user = User(budget.folder / "user")
    evil, mark = evil_library(budget.folder)
    user.get_hook()
    first = user.run()
    outcome.failures += [f"before any attack: {problem}" for problem in first.problems()]
    good = user.folder / "good"
    shutil.copytree(user.cache, good)
    (name,) = (path.name for path in good.glob("pytracer_cpu-*.so"))
    tampers = list(TAMPERS)
    if os.geteuid() != 0:
        tampers = [tamper for tamper in tampers if tamper not in OF_ANOTHER]
        outcome.skipped.append("files of other users: only root can make them")
    recorded = 0
    while outcome.tried == 0 or time.monotonic() < deadline:
        # Both folders that pytracer itself chooses are unchanged, or the private one is empty.
        for place in (user.cache, user.folder / "tmp" / f"pytracer-{os.geteuid()}"):
            _remove(place)
        os.chown(user.cache.parent, os.geteuid(), os.getegid())
        user.cache.parent.chmod(0o700)
        shutil.copytree(good, user.cache)
        user.cache.chmod(0o700)
        tamper = tampers[outcome.tried % len(tampers)]
        tamper(user.cache / name, rng, evil)
        build = rng.choice(("never",) * 5 + ("auto",))
        ended = user.run(PYTRACER_BUILD=build)
        problems = ended.problems()
        if not ended.is_recorded and not any("pytracer" in line for line in ended.lines):
            problems.append("it was not recorded, and no line says why")
        if tamper in NEVER_LOADED and mark.exists():
            problems.append("the library of others was loaded")
        mark.unlink(missing_ok=True)
        what = (
            f"seed {budget.seed}, job {outcome.tried} ({tamper.__name__}, PYTRACER_BUILD={build})"
        )
        outcome.failures += [f"{what}: {problem}" for problem in problems]
        outcome.tried += 1
        recorded += ended.is_recorded
    outcome.figures = {
        "kinds of tampering": len(tampers),
        "jobs recorded all the same": recorded,
        "jobs untraced with a reason": outcome.tried - recorded,
    }
    return outcome


def _remove(place: Path) -> None:
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.exists():
        place.chmod(0o700)
        shutil.rmtree(place)
