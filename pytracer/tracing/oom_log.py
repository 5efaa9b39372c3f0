"""The explanation of an out-of-memory in the job's log, after its snapshot was written.

The thread that ran out of memory reads the file again, which takes host memory only. Nothing here
calls torch or a device. The size of the file bounds the time and the memory; a larger file is left
to `pytracer show`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from pytracer.log import report_once
from pytracer.tracing import ranks

if TYPE_CHECKING:
    from pytracer.analysis.answer import Answer

MOST_BYTES = 16 * 2**20
"""The largest file that is read: about 250,000 events, 1 s and 100 MB of host memory."""


def report(message: str, kind: str | None = None) -> None:
    """Log lines as `report_once` does. Each names the rank, because ranks write into one log."""
    rank = ranks.current()
    name = f"rank {rank.rank}: " if rank.is_one_of_several else ""
    report_once("\n".join(name + line for line in message.splitlines()), kind)


def explain(path: Path, device: int) -> "Answer | None":
    """Log the answer about a file, one line a role, and return it. Never raises.

    Args:
        path: The snapshot of the out-of-memory.
        device: The index of the device that ran out of memory.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        from pytracer.analysis.answer import log_lines
        from pytracer.analysis.answer_words import answer_of
        from pytracer.analysis.explanation import explain
        from pytracer.reading.reader import load
        from pytracer.simulator.trials import try_settings

        (explanation,) = explain(load(path), device, try_settings)
        answer = answer_of(explanation)
        report("\n".join(log_lines(answer)))
        return answer
    except FileNotFoundError:
        return None  # `on_snapshot` has moved the file
    except Exception as error:
        report(
            f"the out-of-memory was not explained: {error!r}. The snapshot {path} is complete; "
            "read it with `pytracer show`",
            "out-of-memory not explained",
        )
        return None
