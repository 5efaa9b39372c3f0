"""A tracer around the training of a framework that calls back."""

import contextlib
from typing import Any

import pytracer
from pytracer.log import harmless, print_line


class RecordingCallback:
    """What the callbacks of all frameworks have: a tracer, which the training begins and ends.

    No method of the training raises. A framework may pickle its callbacks for the processes that it
    starts. The tracer of such a process is made anew, from the same options.
    """

    def __init__(
        self,
        output: Any = None,
        *,
        tracer: "pytracer.Tracer | None" = None,
        report: bool = True,
        **options: Any,
    ) -> None:
        """Check the options; record nothing yet.

        Args:
            output: Where snapshots are written; an option of `pytracer.Tracer`.
            tracer: A tracer, instead of options.
            report: Whether the first rank prints `tracer.report()` at the end of the training.
            **options: The other options of `pytracer.Tracer`.

        Raises:
            ConfigError: An option cannot be used, or there are options next to a tracer.
        """
        given = options if output is None else {"output": output, **options}
        if tracer is not None and given:
            names = ", ".join(given)
            raise pytracer.ConfigError(
                f"both a tracer and options ({names}) are given: give the options to the tracer"
            )
        self._tracer_options = given
        self._report = report
        self._records = False
        self._tracer = pytracer.Tracer(**given) if tracer is None else tracer

    def __getstate__(self) -> dict[str, Any]:
        """Return the options without the tracer, which belongs to this process."""
        return {**self.__dict__, "_tracer": None, "_records": False}

    @property
    def tracer(self) -> "pytracer.Tracer":
        """The tracer."""
        if self._tracer is None:
            self._tracer = pytracer.Tracer(**self._tracer_options)
        return self._tracer

    def _begin_recording(self) -> None:
        """Begin to record, unless the training before has raised, whose recording continues."""
        with _harmless():
            if not self._records:
                self.tracer.__enter__()
                self._records = True

    def _end_step(self) -> None:
        with _harmless():
            if self._records:
                self.tracer.step()

    def _end_recording(self, is_first_rank: bool) -> None:
        """Stop, write the snapshot, and print the report on the first rank."""
        with _harmless():
            if self._records:
                self._records = False
                self.tracer.__exit__(None, None, None)
                if self._report and is_first_rank and self.tracer.stats()["untraced"] is None:
                    print_line(str(self.tracer.report()))


def _harmless() -> contextlib.AbstractContextManager[None]:
    return harmless("the training is not recorded as asked: {error}. The training continues")
