"""The source of the program's lines in a snapshot's stacks, for readers on other machines.

It is read when a file is written: nothing here is on the path of an event. A file of the program is
read once, because what its lines were does not change. Lines of code that inductor generated are
shown as torch's own recorder shows them: as the lines of the model.
"""

import sys
import time
from collections import defaultdict
from itertools import islice
from typing import Any

from pytracer import _core

# Not when a file is written: a process forked while another thread imports would wait for ever.
from pytracer.analysis.call_sites import ProgramFiles
from pytracer.log import harmless
from pytracer.reading.files import read_source

MOST_GENERATED_LINES = 20_000  # how many lines of generated code are mapped in a snapshot at most
MOST_FRAMES_OF_A_LINE = 64  # to which a generated line is mapped; the outermost are left out
MOST_FILES = 200  # how many files of the program have their lines in a snapshot
MOST_LINES = 2_000  # how many lines a snapshot has at most
MOST_CHARACTERS = 2**16  # how many characters a snapshot's lines have together at most
MOST_OF_A_LINE = 200  # how many characters of a line are kept
MOST_SECONDS = 0.2  # after this time no further file is read for a snapshot
_MOST_FRAMES = 20_000
_begin_ns = time.time_ns()
_known: dict[str, dict[int, str]] = {}  # the lines by file, "" if unknown

Lines = dict[str, list[tuple[int, str]]]  # for each file, its lines with their numbers


# For a file and a line, the frames that the line was generated from, innermost first: the file, the
# function and the line of each.
GeneratedCode = dict[tuple[str, int], list[tuple[str, str, int]]]


def generated_code(view: _core.View) -> GeneratedCode:
    """Return the frames that generated lines in a view's stacks were made from. Never raises.

    Only a program that has imported inductor has such lines: pytracer never imports inductor.
    """
    failed = (
        "frames of compiled code are not mapped to the model's lines: {error}. Everything else is "
        "in the snapshot"
    )
    with harmless(failed, "generated code"):  # another torch than expected
        cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
        found: GeneratedCode = {}
        # Only files that torch knows are asked for: torch remembers the answer for others too.
        if files := set(getattr(cache, "linemaps", ())):
            for filename, line in view.lines_in(files, MOST_GENERATED_LINES):
                frames = cache.stack_frames_for_code(filename, line) or []
                found[filename, line] = [
                    (str(frame["filename"]), str(frame["name"]), int(frame["line"]))
                    for frame in frames[:MOST_FRAMES_OF_A_LINE]
                ]
        return found
    return {}


def source_lines(view: _core.View, code: GeneratedCode, torch_folders: list[str]) -> Lines:
    """Return the source of the program's lines in a view's stacks. Never raises.

    Lines from which `code` was generated count too. Files in `torch_folders`, which are the folders
    of torch's packages, are not the program's.
    """
    failed = (
        "the program's source lines are not in the snapshot: {error}. Everything else is in the "
        "snapshot"
    )
    with harmless(failed, "source lines"):
        program = ProgramFiles.outside(torch_folders)
        wanted: dict[str, set[int]] = defaultdict(set)
        for filename, line in view.lines_in(None, _MOST_FRAMES):
            wanted[filename].add(line)
        for frames in code.values():
            for filename, _, line in frames:
                wanted[filename].add(line)
        # Files of installed packages come last: they are the same elsewhere.
        names = sorted(wanted, key=lambda name: ("-packages" in name, name))
        names = [name for name in names if name in program]
        found: Lines = {}
        lines, characters = MOST_LINES, MOST_CHARACTERS
        end = time.monotonic() + MOST_SECONDS
        for name in islice(names, MOST_FILES):
            texts = _known.get(name, {})
            if wanted[name] - texts.keys():
                if time.monotonic() > end:
                    break
                texts = _read(name, wanted[name])
            for number in sorted(wanted[name]):
                text = texts[number]
                lines, characters = lines - bool(text), characters - len(text)
                if lines < 0 or characters < 0:
                    return found
                if text:
                    found.setdefault(name, []).append((number, text))
        return found
    return {}


def _read(name: str, numbers: set[int]) -> dict[int, str]:
    """Return the lines of a file with these numbers, and those that were read before."""
    lines = read_source(name, _begin_ns)
    texts = dict(_known.get(name, {}))
    for number in numbers:
        text = lines[number - 1] if 0 < number <= len(lines) else ""
        texts[number] = text.strip()[:MOST_OF_A_LINE]
    if len(_known) >= 2 * MOST_FILES:
        _known.clear()
    _known[name] = texts
    return texts
