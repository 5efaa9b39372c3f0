"""The texts, frames, stacks, call sites, phases and pools that the parts of a file use.

The page gets only what its events and blocks refer to. Everything is bounded, because the author
of a file chooses its names and stacks.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pytracer.analysis.blocks import Coded
from pytracer.analysis.call_sites import call_sites, frame_at, is_programs
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.life_rules import UNKNOWN
from pytracer.page.parts import Part
from pytracer.reading.snapshot import Column, Snapshot

TYPES: Mapping[str, str] = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}
"""The types of columns: names in the page, and numpy's names."""

_ALIGNMENT = 8
_LEVEL = 1  # of zlib: higher levels take several times the time and save a tenth
_EXACT = 2**53  # integers up to here are exact in float64


class Packer:
    """Columns, one after the other, compressed by zlib.

    The bytes of a column are stored as planes: first the first byte of each value, then the second
    byte of each value, and so on. zlib compresses these better, because most high bytes are equal.
    """

    def __init__(self) -> None:
        self._columns: list[bytes] = []
        self._end = 0

    def add(self, kind: str, values: Column, *, delta: bool = False) -> dict[str, Any]:
        """Add a column and return its description for the header.

        A column of equal values takes no bytes. With `delta`, the differences of the values are
        stored, which compress better where values rise slowly. `kind` is one of `TYPES`.
        """
        values = np.asarray(values).astype(TYPES[kind])
        column: dict[str, Any] = {"type": kind, "offset": self._end, "length": len(values)}
        if len(values) == 0 or (values == values[0]).all():
            return {**column, "constant": values[0].item() if len(values) else 0}
        if delta and _has_exact_differences(values):
            column["delta"] = True
            values = np.diff(values, prepend=values.dtype.type(0))
        planes = values.view("u1").reshape(len(values), -1).T
        padding = -planes.size % _ALIGNMENT
        self._columns.append(planes.tobytes() + bytes(padding))
        self._end += planes.size + padding
        return column

    def compressed(self, header: bytes) -> bytes:
        """Return the header's length, the header (JSON) and the columns, compressed.

        The offsets of columns count from the header's end, padded to 8 bytes.
        """
        head = len(header).to_bytes(4, "little") + header
        stream = zlib.compressobj(_LEVEL)
        parts = [stream.compress(head + bytes(-len(head) % _ALIGNMENT))]
        parts += [stream.compress(column) for column in self._columns]
        return b"".join([*parts, stream.flush()])


def _has_exact_differences(values: Column) -> bool:
    """Return whether sums of the differences give the values again: float64 may round."""
    if values.dtype.kind != "f":
        return True  # integers wrap around in both directions
    return bool(np.abs(values).max() < _EXACT / 2)


MOST_CHARACTERS = 500  # the longest text; of a longer one, the end is cut off

MOST_OF_LINE = 2_000
"""The longest line of the verdict and the longest sentence about what is left out."""

MOST_TEXT = 8 * 2**20
"""The characters of all texts of a file together; further texts are shown as "…"."""

MOST_STACK_FRAMES = 2_000_000
"""The frames of all stacks of a file together; further stacks are shown as empty."""

MOST_NAMES = 65_536
"""The most phases, pools and modules of a file; further ones are shown as the first one."""

MOST_KINDS = 256  # the most kinds of blocks of a file; blocks of further ones are shown as unknown


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text of at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


class Tables:
    """The tables of a file, and the numbers in them of the snapshot's values.

    Attributes:
        left_out: What was left out, as sentences.
        frames, sites: The frames and the texts of call sites, for the header.
        modules, kinds: The number in the page of each module's path, and each kind of blocks.
        stack, phase, pool: The number in the page of each stack, each string that is a phase, and
            each pool of the snapshot.
    """

    def __init__(self, snapshot: Snapshot, parts: Iterable[Part], packer: Packer) -> None:
        """Collect what the parts of a snapshot use, and add its columns to `packer`."""
        parts = list(parts)
        self.left_out: list[str] = []
        self._snapshot, self._packer = snapshot, packer
        self._texts, self._number = [""], {"": 0}
        self._is_cut, self._left = False, MOST_TEXT
        stacks, phases, pools = (_shown(parts, name) for name in ("stack", "user_metadata", "pool"))
        pools += [np.array([s.pool for s in part.segments], np.int64) for part in parts]
        self.phase, used_phases = _numbered(phases, len(snapshot.strings), MOST_NAMES)
        self.pool, used_pools = _numbered(pools, len(snapshot.pools), MOST_NAMES)
        phase_texts = [self.text(snapshot.strings[i]) for i in used_phases]
        every_kind = [
            (UNKNOWN, ""),
            *(kind for part in parts for kind in part.blocks.column("shown_kind").values),
        ]
        all_kinds = list(dict.fromkeys(every_kind))
        kinds = all_kinds[:MOST_KINDS]
        names = list(dict.fromkeys(category for category, _ in kinds))
        modules = (part.blocks.column("module_path") for part in parts)
        used_modules = [values[i] for values, code in modules for i in _used([code])]
        paths = list(dict.fromkeys(["", *used_modules]))
        self.modules = {path: number for number, path in enumerate(paths[:MOST_NAMES])}
        self.kinds = {kind: number for number, kind in enumerate(kinds)}
        self._header: dict[str, Any] = {
            "stacks": self._add_stacks(_used(stacks)),
            "phases": phase_texts,
            "pools": [snapshot.pools[i].tolist() for i in used_pools],
            "categories": [shortened(name.replace("_", " ")) for name in names],
            "modules": [self.text(path) for path in self.modules],
            "kinds": [[names.index(category), shortened(rule)] for category, rule in kinds],
        }
        for left, shown_as in (
            (len(_used(phases)) - len(used_phases), 'phases are shown as "no phase"'),
            (len(_used(pools)) - len(used_pools), "pools are drawn as part of the first pool"),
            (len(paths) - len(self.modules), "modules are shown as unknown"),
            (len(all_kinds) - len(kinds), "kinds of blocks are shown as unknown"),
        ):
            if left:
                self.left_out.append(f"{left:,} {shown_as}.")

    def finish(self) -> dict[str, Any]:
        """Return the keys of the header, after all texts were added."""
        if self._is_cut:
            self.left_out.append("Long texts are cut.")
        return {**self._header, "strings": self._texts}

    def known(self, of: Mapping[Any, int], column: Coded) -> Column:
        """Return the numbers of `kinds` or `modules` of blocks; 0, unknown, for too many."""
        found: Column = np.array([of.get(each, 0) for each in column.values])[column.code]
        return found

    def texts(self, column: Column, of: Sequence[str | None] | None = None) -> Column:
        """Return the numbers of texts, None as ""; without `of`, of strings of the snapshot."""
        used, which = np.unique(column, return_inverse=True)
        strings = [(of or self._snapshot.strings)[i] or "" for i in used.tolist()]
        for text in strings:
            if text not in self._number:
                self._number[text] = len(self._texts)
                self._texts.append(self.text(text))
        found: Column = np.array([self._number[text] for text in strings], np.uint32)[which]
        return found

    def text(self, text: str) -> str:
        """Return a text that is not too long, and counts against the bound of all texts."""
        shown = shortened(text)
        if len(shown) > self._left:
            shown = "…"
        self._is_cut |= shown != text
        self._left -= min(len(shown), self._left)
        return shown

    def _add_stacks(self, used: Column) -> dict[str, Any]:
        stacks, packer = self._snapshot.stacks, self._packer
        used = np.union1d(used, stacks.forward[used]).astype(np.int64)
        if len(used) == 0 or used[0] != 0:
            used = np.append(0, used)
        lengths = stacks.offsets[used + 1] - stacks.offsets[used]
        kept = used[np.cumsum(lengths) <= MOST_STACK_FRAMES]
        if len(kept) < len(used):
            self.left_out.append(
                f"{len(used) - len(kept):,} of {len(used):,} call stacks are shown as empty."
            )
        self.stack = np.zeros(len(stacks), np.uint32)
        self.stack[kept] = np.arange(len(kept))
        lengths = lengths[: len(kept)]
        ends = np.cumsum(lengths)
        # The rows in `stacks.frame` of the kept stacks, one stack after the other.
        rows = np.repeat(stacks.offsets[kept] - (ends - lengths), lengths)
        frames, frame = np.unique(stacks.frame[rows + np.arange(len(rows))], return_inverse=True)
        sites, site = np.unique(call_sites(stacks)[kept], return_inverse=True)
        self.frames = {
            "count": len(frames),
            "filename": packer.add("u32", self.texts(stacks.filename[frames])),
            "name": packer.add("u32", self.texts(stacks.name[frames])),
            "line": packer.add("u32", np.clip(stacks.line[frames], 0, 2**32 - 1)),
            "is_program": packer.add("u8", is_programs(stacks)[frames]),
        }
        self.sites = [self.text(call_site_text(frame_at(stacks, site))) for site in sites.tolist()]
        return {
            "count": len(kept),
            "offsets": packer.add("u32", np.append(0, ends), delta=True),
            "frame": packer.add("u32", frame),
            "site": packer.add("u32", site),
            "forward": packer.add("u32", self.stack[stacks.forward[kept]]),
            "node": packer.add("u32", self.texts(stacks.node[kept])),
            "is_exact": packer.add("u8", stacks.is_exact[kept]),
        }


def _shown(parts: Iterable[Part], name: str) -> list[Column]:
    """Return a column of the blocks and the events of parts."""
    return [
        column
        for part in parts
        for column in (
            part.blocks.of_lives(name),
            getattr(part.data.trace, name)[part.first : part.first + part.events],
        )
    ]


def _used(columns: Iterable[Column]) -> Column:
    """Return the distinct values of columns, sorted."""
    return np.unique(np.concatenate([np.zeros(1, np.int64), *map(np.unique, columns)]))


def _numbered(columns: Iterable[Column], values: int, most: int) -> tuple[Column, list[int]]:
    """Return for each of the values its number in the page, and the values that are used.

    The value 0 has the number 0, and so have values that are not used, or too many.
    """
    used = _used(columns)[:most].astype(np.int64)
    numbers = np.zeros(values, np.uint32)
    numbers[used] = np.arange(len(used))
    return numbers, used.tolist()
