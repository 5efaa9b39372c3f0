"""Compilers that fail, hang, are killed, print much or write garbage.

There is no hook for the running torch, so that a job has to compile one. CXX is a program that
exits with an error, is ended by a signal, hangs, leaves a child that keeps its output open, prints
50 MB, writes no file, an empty file, garbage, or a library that crashes, exits or hangs when it is
loaded; or it removes the folder in which it works. Time limits of two minutes are shortened to
seconds.
"""

import functools
import os
import shutil
import time
from pathlib import Path

from attack import Budget, Found
from jobs import User

from pytracer.backends.hook_attach import HOOKS
from pytracer.backends.probe_process import probe_in_child

PROMISE = (
    "The job runs to its end untraced, with one line that says why, and no file is left under the "
    "hook's name."
)
DEVICE = "cpu"
SECONDS = 60

LIMIT_SECONDS = 20.0  # the time limit of the probe, which imports torch
COMPILE_SECONDS = 3.0
HEAD = """#!/bin/bash
arguments=("$@")
while [ $# -gt 0 ]; do [ "$1" = -o ] && output=$2; shift; done
"""
LIBRARY = """
echo '#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void run() {{ {} }}' > "$output.c"
cc -shared -fPIC -o "$output" "$output.c" && rm "$output.c"
"""
COMPILERS = {
    "fails": "echo error: no >&2; exit 1",
    "fails without a word": "exit 1",
    "dies of SIGSEGV": "kill -SEGV $$",
    "is killed": "kill -KILL $$",
    "hangs": "exec sleep 1000",
    "hangs and ignores SIGTERM": "trap '' TERM; while true; do sleep 1; done",
    "leaves a child that keeps its output open": "sleep 30 & exit 1",
    "prints 50 MB": "head -c 50000000 /dev/zero | tr '\\0' 'e' >&2; exit 1",
    "prints what is not UTF-8": "head -c 10000 /dev/urandom >&2; exit 1",
    "prints terminal codes": "printf 'error: \\033[2J\\033]0;x\\007\\n' >&2; exit 1",
    "writes nothing": "exit 0",
    "writes an empty file": ': > "$output"',
    "writes garbage": 'head -c 20000 /dev/urandom > "$output"',
    "writes half a library": 'c++ "${arguments[@]}" && truncate -s 4000 "$output"',
    "writes a library without a hook": LIBRARY.format(""),
    "writes a library that aborts": LIBRARY.format("abort();"),
    "writes a library that crashes": LIBRARY.format("*(volatile int*)8 = 0;"),
    "writes a library that exits": LIBRARY.format("_exit(0);"),
    "writes a library that hangs": LIBRARY.format("for (;;) sleep(1);"),
    "writes a folder": 'rm -f "$output"; mkdir "$output"',
    "writes a pipe": 'rm -f "$output"; mkfifo "$output"',
    "removes its folder": 'rm -rf "$(dirname "$output")"',
    "is no program": None,
    "is not there": "",
}


def impatient() -> None:
    """Shorten the time limits."""
    HOOKS.builder.compiler.timeout_s = COMPILE_SECONDS
    HOOKS.builder.probe = functools.partial(probe_in_child, timeout_s=LIMIT_SECONDS)


def make_compiler(path: Path, does: str | None) -> None:
    path.unlink(missing_ok=True)
    if does == "":
        return
    path.write_bytes(b"\x7fELF garbage" if does is None else (HEAD + does + "\n").encode())
    path.chmod(0o755)


def attack(budget: Budget) -> Found:
    order = budget.rng.sample([*COMPILERS], len(COMPILERS))
    found = Found("jobs with a bad compiler")
    found.count("kinds of compilers", len(order))
    user = User(budget.folder / "user")
    compiler = budget.folder / "compiler"
    for number in found.turns(budget):
        kind = order[number % len(order)]
        make_compiler(compiler, COMPILERS[kind])
        begin = time.monotonic()
        ended = user.run(before=impatient, CXX=str(compiler))
        found.highest("longest job, s", time.monotonic() - begin)
        problems = ended.problems()
        if ended.is_recorded:
            problems.append("it was recorded, by what no compiler made")
        lines = [line for line in ended.lines if "once: this can take" not in line]
        if len(lines) != 1 or "pytracer" not in lines[0]:
            problems.append(f"{len(lines)} lines: {ended.output[-300:]!r}")
        if "\x1b" in ended.output or len(ended.output) > 5000:
            problems.append(f"it passed on {len(ended.output)} characters of the compiler's")
        places = (user.cache, user.folder / "tmp" / f"pytracer-{os.geteuid()}")
        if left := [path.name for place in places for path in place.glob("*.so")]:
            problems.append(f"left: {left}")
        found.fail(f"seed {budget.seed}, job {number}: a compiler that {kind}", problems)
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
    return found
