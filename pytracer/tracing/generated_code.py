"""The lines of the model that inductor generated code from, as torch's own recorder shows them."""

import sys
from typing import Any

from pytracer import _core
from pytracer.log import warn_once

MAX_LINES = 20_000  # how many lines of generated code are mapped at most in one snapshot
MAX_FRAMES = 64  # how many frames a line is mapped to at most; the outermost are left out

GeneratedCode = dict[tuple[str, int], list[tuple[str, str, int]]]
"""For a file and a line, the frames that the line was generated from, innermost first: the file,
the function and the line of each."""


def generated_code(view: _core.View) -> GeneratedCode:
    """Return the frames that generated lines in a view's stacks were made from. Never raises.

    Only a program that has imported inductor has such lines: pytracer never imports inductor.
    """
    try:
        cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
        # Only files that torch knows are asked for: torch remembers the answer for others too.
        files = set(getattr(cache, "linemaps", ()))
        if not files:
            return {}
        found: GeneratedCode = {}
        for filename, line in view.lines_in(files, MAX_LINES):
            frames = cache.stack_frames_for_code(filename, line) or []
            found[filename, line] = [
                (str(frame["filename"]), str(frame["name"]), int(frame["line"]))
                for frame in frames[:MAX_FRAMES]
            ]
        return found
    except Exception as error:  # another torch than expected
        warn_once(
            f"frames of compiled code are not mapped to the model's lines: {error!r}. Everything "
            "else is in the snapshot",
            "generated code",
        )
        return {}
