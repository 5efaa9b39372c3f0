"""The command `pytracer explain`."""

from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from pytracer.analysis.explanation import Explanation, explain
from pytracer.analysis.explanation_lines import age_text, fitting_text, purposes_text, verdict_text
from pytracer.commands.explained_files import ExplainedFile, in_order
from pytracer.commands.parallel import find_files, in_parallel, print_errors
from pytracer.commands.shared_options import (
    device_option,
    files_argument,
    json_options,
    memory_option,
)
from pytracer.commands.table import call_chain, new_table
from pytracer.reading.metadata import read_number
from pytracer.reading.reader import load
from pytracer.simulator.trials import try_settings
from pytracer.text import printable, size

_HELD = {
    "oom": "Memory held at the out-of-memory",
    "peak": "Memory held at the peak",
    "end": "Memory held at the end",
}


@click.command("explain")
@files_argument
@device_option
@json_options
@memory_option
@click.pass_context
def explain_command(
    context: click.Context,
    paths: tuple[Path, ...],
    device: int | None,
    as_json: bool,
    json_path: str | None,
    memory_bytes: int | None,
) -> None:
    """Why did memory run out, and what can I do?

    \b
    pytracer explain outputs/profile/oom_20261122-193649-396742/torch_memory_oom_rank0_pid7.pickle
    pytracer explain outputs/profile

    Prints what happened, why the allocation failed, the call sites that held memory at that moment,
    and commands to try. For several files, or a directory of them, explains the file of the first
    rank that ran out of memory, and prints one line for each other file.
    """
    found, errors = find_files(paths)
    read = partial(_read, device=device)
    results = errors + in_parallel(read, found, "Reading snapshots", memory_bytes)
    files = in_order([result for result in results if isinstance(result, ExplainedFile)])
    if as_json or json_path is not None:
        from pytracer.commands.json_output import write_results

        write_results({"files": files}, results, to_stdout=as_json, path=json_path)
    if files and not as_json:
        _show(files[0])
        if files[1:]:
            console = Console(highlight=False)
            console.print()
            console.print("Other files:")
            for file in files[1:]:
                console.print(Text(printable(file.summary())), soft_wrap=True)
    if print_errors(results):
        context.exit(1)


def _read(path: Path, device: int | None) -> ExplainedFile:
    snapshot = load(path)
    metadata = snapshot.metadata
    return ExplainedFile(
        path=str(path),
        rank=read_number(metadata, "rank"),
        pid=read_number(metadata, "pid"),
        written_ns=read_number(metadata, "written_ns"),
        devices=explain(snapshot, device, try_settings),
    )


def _show(file: ExplainedFile) -> None:
    console = Console(highlight=False)
    console.print(Text(printable(file.path)), soft_wrap=True)
    if not file.devices:
        console.print("The file has no events and no segments.")
    for explanation in file.devices:
        # The other devices of a file of an out-of-memory are not the reason of the file.
        if explanation.oom is None and file.devices[0].oom is not None:
            continue
        console.print()
        _show_device(console, explanation)


def _show_device(console: Console, explanation: Explanation) -> None:
    console.print(Text(printable(explanation.what), "bold"))
    for verdict in explanation.verdicts:
        line = f"Verdict: {verdict_text([verdict])}"
        console.print(Text(printable(line), "bold"))
    if explanation.leak == "leak":
        console.print(Text(printable(explanation.leak_answer), "bold"))
    if text := fitting_text(explanation):
        console.print(Text(printable(text), "bold"))
    if explanation.holders:
        console.print()
        has_ages = any(age_text(holder) for holder in explanation.holders)
        title = _HELD[explanation.held_at] + f", {size(explanation.held_bytes)} in all"
        names = ("bytes", "share", "blocks", *(("age",) if has_ages else ()))
        table = new_table(*names, "call site ← callers", title=title, text=-1)
        for holder in explanation.holders:
            site = holder.site
            cells = [size(site.size_bytes), f"{holder.share:.0%}", f"{site.count:,}"]
            if has_ages:
                cells.append(age_text(holder) or "-")
            table.add_row(*cells, call_chain(site.call_site, holder.callers))
        console.print(table)
    if purposes := purposes_text(explanation):
        console.print(Text(f"It was for: {printable(purposes)}."))
    if explanation.suggestions:
        console.print()
        console.print("What to try:")
        for suggestion in explanation.suggestions:
            if suggestion.command:
                console.print(Text(f"  {printable(suggestion.command)}", "bold"), soft_wrap=True)
            indent = "      " if suggestion.command else "  "
            console.print(Text(f"{indent}{printable(suggestion.why)}"))
