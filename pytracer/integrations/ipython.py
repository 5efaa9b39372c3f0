"""`%%pytracer`: record a cell of a notebook, and report below it."""

import html
import os
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytracer
from pytracer.integrations.packages import needs
from pytracer.tracing.tracer import LiveReport

with needs("ipython", "ipython"):
    from IPython.core.error import UsageError
    from IPython.display import display

FOLDER = "outputs/profile"
_USAGE = "%%pytracer [--output FOLDER] [--view] [OPTION=VALUE ...]"


@dataclass(frozen=True)
class CellReport:
    """The answer about a cell, with links to the snapshot and the page: shown below the cell."""

    report: LiveReport
    snapshot: Path
    page: Path

    def __repr__(self) -> str:
        """Return the report as text."""
        return f"{self.report}\nPage: {self.page}\nSnapshot: {self.snapshot}"

    def _repr_html_(self) -> str:
        links = (
            f'<a href="{html.escape(path.as_posix(), quote=True)}" target="_blank">{text}</a>'
            for path, text in ((self.page, "page"), (self.snapshot, "snapshot"))
        )
        return f"{self.report._repr_html_()}<p>{', '.join(links)}</p>"


class CellFailedError(Exception):
    """The cell has raised. Ends the execution of the notebook, without a second traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def load(shell: Any) -> None:
    """Define the magic in an IPython shell."""
    shell.register_magic_function(_Magic(shell), "cell", "pytracer")


class _Magic:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._used: Counter[Path] = Counter()  # names of files, without suffixes

    def __call__(self, line: str, cell: str) -> None:
        """Run the cell, record it, write a snapshot and a page, and show the report.

        Args:
            line: `--output FOLDER` (default: "outputs/profile"), `--view`, which shows the page
                below the cell, and options of `pytracer.Tracer`, such as `stack_depth=64`.
            cell: The code.
        """
        folder, is_viewed, options = _parsed(line)
        if self._shell.should_run_async(cell, transformed_cell=self._shell.transform_cell(cell)):
            raise UsageError(
                "%%pytracer: a cell with `await` outside of a function cannot be recorded as a "
                "cell. Call tracer = pytracer.Tracer().start() before it, and tracer.report() after"
            )
        number = len(self._shell.history_manager.input_hist_raw) - 1
        try:
            tracer = pytracer.Tracer(None, **options)
            tracer.start()
        except pytracer.ConfigError as error:
            raise UsageError(f"%%pytracer: {error}") from None
        try:
            result = self._run(cell, number)
        finally:
            tracer.stop()
        _show(tracer, self._unused(folder / f"cell{number}"), is_viewed)
        raised = result.error_before_exec or result.error_in_exec
        if raised is not None:
            kind = type(raised).__name__
            raise CellFailedError(f"The cell raised {kind}: its traceback is above.") from None

    def _unused(self, name: Path) -> Path:
        """Return a name that no other cell has; without history, all cells have one number."""
        self._used[name.absolute()] += 1
        times = self._used[name.absolute()]
        return name.with_name(f"{name.name}_{times}") if times > 1 else name

    def _run(self, cell: str, number: int) -> Any:
        """Run the code under the number of the cell, which some IPythons have increased already."""
        shell = self._shell
        count = shell.execution_count
        shell.execution_count = number
        try:
            return shell.run_cell(cell, store_history=False)
        finally:
            shell.execution_count = count


def _parsed(line: str) -> tuple[Path, bool, dict[str, Any]]:
    from pytracer.tracing.options import OPTIONS

    folder, is_viewed = Path(FOLDER), False
    options: dict[str, Any] = {}
    words = iter(shlex.split(line))
    for word in words:
        name, _, value = word.partition("=")
        if word == "--view":
            is_viewed = True
        elif name == "--output" and (value := value or next(words, "")):
            folder = Path(value)
        elif name in OPTIONS and name != "output" and value:
            options[name] = OPTIONS[name].parse(value)
        else:
            raise UsageError(f"%%pytracer: {word!r} is unknown. Usage: {_USAGE}")
    return folder, is_viewed, options


def _show(tracer: "pytracer.Tracer", name: Path, is_viewed: bool) -> None:
    """Write the files and show the report. A failure is shown; the cell has run."""
    try:
        if (problem := tracer.stats()["untraced"]) is not None:
            print(f"pytracer: not everything was recorded: {problem}")
        snapshot, target = name.with_suffix(".pickle"), name.with_suffix(".html")
        os.makedirs(name.parent, exist_ok=True)
        tracer.dump(snapshot)
        page = tracer.view()
        page.save(target)
        display(CellReport(tracer.report(), snapshot, target))
        if is_viewed:
            display(page)
    except Exception as error:
        print(f"pytracer: the cell ran, but its report failed: {error!r}")
