"""The answer about several files: that of the file that matters first, with the others in rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytracer.analysis.alike_rows import ranges_text
from pytracer.analysis.answer import Answer, Line
from pytracer.analysis.answer_words import answer_of, leak_lines, leak_verdict
from pytracer.analysis.device_data import why_empty
from pytracer.analysis.explanation import Explanation
from pytracer.analysis.leaks.results import DeviceLeaks, LeakReport
from pytracer.reading.snapshot import Frame, Snapshot
from pytracer.text import number, sentence

RUN_NS = 600 * 10**9
"""Processes of one run that run out of memory do so within this time, as is assumed here."""

SHOWN_OTHERS = 3  # the most rows about further devices, and about further files

_KINDS = ("oom", "leak", "none", "unknown")


@dataclass(frozen=True)
class AnsweredFile:
    """A file with the explanations of its devices.

    Attributes:
        path: The file's path.
        rank, role, host, pid: The process that wrote the file; None if unknown.
        written_ns: When the file was written; None if unknown.
        devices: The explanations, the device that matters first.
        why_empty: Why the file has no devices, as a part of a sentence; "" if it has some.
        sources: The source of the call sites in the answers, by their places such as
            "/job/train.py:73"; {} if the file lacks it.
    """

    path: str
    rank: int | None
    role: str | None
    host: str | None
    pid: int | None
    written_ns: int | None
    devices: list[Explanation]
    why_empty: str
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def process(self) -> tuple[object, ...]:
        """A key that is the same for the files of one process, and of one that took its place."""
        if self.rank is not None:
            return self.role, self.rank
        return (self.path,) if self.pid is None else (self.host, self.pid)

    @property
    def is_oom(self) -> bool:
        """Whether an out-of-memory error was the reason of the file."""
        return any(explanation.is_oom_file for explanation in self.devices)

    @property
    def held_bytes(self) -> int:
        """The bytes that the fullest device held."""
        return max((explanation.held_bytes for explanation in self.devices), default=0)

    def answers(self) -> list[Answer]:
        """Return the answer about each device, the device that matters first."""
        return [self._with_sources(answer_of(explanation)) for explanation in self.devices]

    def _with_sources(self, answer: Answer) -> Answer:
        lines = [
            replace(line, source=self.sources.get(_key(line.frame), ""))
            if line.role == "lines" and line.frame is not None
            else line
            for line in answer.lines
        ]
        return replace(answer, lines=lines)


def answered_file(snapshot: Snapshot, explanations: Iterable[Explanation]) -> AnsweredFile:
    """Return a file with the explanations of its devices, in any order."""
    metadata = snapshot.metadata
    file = AnsweredFile(
        path=snapshot.path,
        rank=metadata.rank,
        role=metadata.role,
        host=metadata.host,
        pid=metadata.pid,
        written_ns=metadata.written_ns,
        devices=(devices := sorted(explanations, key=importance)),
        why_empty="" if devices else why_empty(metadata),
    )
    recorded = metadata.source_lines
    frames = [line.frame for answer in file.answers() for line in answer.lines if line.frame]
    known = ((_key(f), recorded.get((f.filename, f.line))) for f in frames)
    return replace(file, sources={key: text for key, text in known if text is not None})


def _key(frame: Frame) -> str:
    return f"{frame.filename}:{frame.line}"


def importance(explanation: Explanation) -> tuple[bool, bool, bool, int, int]:
    """Return a key by which the device that matters is the first."""
    return (
        explanation.oom is None,
        not explanation.has_leak,
        explanation.is_cpu is True or explanation.name == "host",
        -explanation.sample.allocated_bytes,
        explanation.device,
    )


def in_order(files: Iterable[AnsweredFile]) -> list[AnsweredFile]:
    """Return the files, the one that matters first, then the others by time, the newest last.

    The file that matters is that of the first process that ran out of memory in the latest run. A
    process may survive earlier out-of-memory errors, so only the last file of each process counts.
    The latest run is assumed to be the processes whose last file is at most `RUN_NS` older than the
    newest one. Without an out-of-memory error, a file with a leak matters, or else the fullest.
    """
    by_time = sorted(files, key=lambda file: (file.written_ns or 0, file.path))
    if not by_time:
        return []
    # A later process of the same rank is of a later run.
    deadly = list({file.process: file for file in by_time if file.is_oom}.values())
    if deadly:
        newest = max(file.written_ns or 0 for file in deadly)
        first = min(
            (file for file in deadly if (file.written_ns or 0) >= newest - RUN_NS),
            key=lambda file: file.written_ns or 0,
        )
    else:
        first = max(by_time, key=lambda file: (*_urgency(file), file.held_bytes))
    return [first, *(file for file in by_time if file is not first)]


def _urgency(file: AnsweredFile) -> tuple[bool, bool]:
    has_oom = any(explanation.oom is not None for explanation in file.devices)
    return has_oom, any(explanation.has_leak for explanation in file.devices)


def answer_of_files(files: Sequence[AnsweredFile], leaks: LeakReport | None = None) -> Answer:
    """Return the answer about files of one run.

    Args:
        files: At least one file.
        leaks: The search for leaks in all files together; None: each file was searched alone.
    """
    first, *others = in_order(files)
    devices = [] if leaks is None or True in _urgency(first) else leaks.devices
    leak = next((device for device in devices if device.matters), None)
    if leak is not None:
        first = next(file for file in files if file.path == leak.path)
        others = [file for file in in_order(files) if file is not first]
    if not first.devices:
        verdict = "CAN'T TELL whether there was a problem"
        why = Line("why", sentence(first.why_empty))
        return Answer("unknown", verdict, "", [why, *_others(first, others)])
    answer, *further = first.answers()
    where, lines = answer.where, answer.lines
    if others:
        ranks = {file.rank for file in files} - {None}
        if first.rank is not None and len(ranks) > 1 and ranks == {*range(len(ranks))}:
            rank = f"rank {first.rank}"
            where = where.replace(rank, f"{rank} of {len(ranks)}")
        lines = [Line("file", first.path), *lines]
    if leak is not None:
        answer = replace(answer, kind="leak", verdict=leak_verdict(leak))
        lines = _leak_of_ends(leak, lines)
    more = [line for line in lines if line.role in ("do", "more")]
    lines = [line for line in lines if line.role not in ("do", "more")]
    lines += [Line("others", f"{each.where}: {each.headline}") for each in further[:SHOWN_OTHERS]]
    return replace(answer, where=where, lines=[*lines, *_others(first, others), *more])


def _leak_of_ends(leak: DeviceLeaks, lines: Iterable[Line]) -> list[Line]:
    """Return the lines of an answer with a leak that only several files together show."""
    kept = [line for line in lines if line.role not in ("leak", "why", "file")]
    file = Line("file", f"{leak.path} and the final states of {number(leak.files, 'file')}")
    return [file, *leak_lines(leak), *kept]


def _others(first: AnsweredFile, files: Sequence[AnsweredFile]) -> Iterator[Line]:
    """Yield a row for the files with the same answer, the urgent ones first.

    The file at the end of a process has its out-of-memory too, which counts once.
    """
    ran_out = {first.process} if first.is_oom else set()
    groups: dict[tuple[int, str], list[tuple[AnsweredFile, Answer | None]]] = {}
    for file in files:
        answer = file.answers()[0] if file.devices else None
        key = (3, "the file has no events")
        if answer is not None:
            verdict = "LEAK" if answer.kind == "leak" else answer.verdict
            if answer.kind == "oom":
                if file.process in ran_out:
                    continue
                ran_out.add(file.process)
            key = (_KINDS.index(answer.kind), verdict)
        groups.setdefault(key, []).append((file, answer))
    rows = sorted(groups.items(), key=lambda item: item[0])
    for (_, verdict), same in rows[:SHOWN_OTHERS]:
        answer = same[0][1]
        text = verdict if answer is None or len(same) > 1 else answer.headline
        yield Line("others", f"{_names([file for file, _ in same])}: {text}")
    if left := sum(len(same) for _, same in rows[SHOWN_OTHERS:]):
        yield Line("others", f"and {number(left, 'more file')}")


def _names(files: Sequence[AnsweredFile]) -> str:
    """Return the names of files: their ranks if each has its own, or else their paths."""
    ranks = [file.rank for file in files if file.rank is not None]
    if len(set(ranks)) == len(files) and len({file.role for file in files}) == 1:
        role = files[0].role
        noun = "rank" if len(files) == 1 else "ranks"
        return f"{'' if role is None else role + ' '}{noun} {ranges_text(ranks)}"
    if len(files) == 1:
        return files[0].path
    return number(len(files), "file")
