"""The table of `pytracer stats` about what memory was for."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.analysis.categories import Categories, CategoryUsage
from pytracer.analysis.report import DeviceReport, Report
from pytracer.commands.table import add_row, new_table
from pytracer.reading.metadata import read_number
from pytracer.text import number, printable, size

_BAR_WIDTH = 12


# Categories in the answer, in words that fit after a percentage.
_WORDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer states",
    "buffer": "buffers",
    "activation": "activations",
    "input": "inputs",
    "output": "outputs",
    "workspace": "workspaces",
}
_LEAST_SHARE = 0.01


def category_answers(device: DeviceReport, categories: Categories) -> Iterator[str]:
    """Yield what memory was for at the peak, and which memory two usual remedies would change."""
    at_peak = categories.at_peak
    if not at_peak or not (total := sum(usage.size_bytes for usage in at_peak)):
        return
    parts = [
        f"{usage.size_bytes / total:.0%} {_words(usage.category)}"
        for usage in at_peak
        if usage.size_bytes >= _LEAST_SHARE * total
    ]
    text = f"{device.name}, at the peak: {', '.join(parts)}"
    named = [usage for usage in (device.modules and device.modules.at_peak) or () if usage.module]
    if named:
        most = named[0]
        text += f"; of the modules, {most.module} holds most, {most.size_bytes / total:.0%}"
    yield f"{text}."
    sizes = {usage.category: usage.size_bytes for usage in at_peak}
    remedies = [
        f"{remedy} {size(sizes[category])} ({_words(category)})"
        for category, remedy in (
            ("activation", "checkpointing applies to"),
            ("optimizer_state", "a sharded optimizer to"),
        )
        if category in sizes
    ]
    if len(remedies) == 2:
        yield f"To lower the peak: {', '.join(remedies)}."


def _words(category: str) -> str:
    return _WORDS.get(category, printable(category.replace("_", " ")))


def show_categories(console: Console, report: Report, device: DeviceReport) -> None:
    """Print the tables of the categories, at the end and at the peak, and what is not known."""
    categories = device.categories
    if categories is None:
        return
    moment = "end" if device.sites_at_oom is None else "out-of-memory"
    console.print()
    console.print(_table(categories.at_end, f"What memory was for at the {moment}"))
    at_peak = categories.at_peak
    if at_peak not in (None, categories.at_end) and any(usage.owners for usage in at_peak):
        console.print()
        console.print(_table(at_peak, "What memory was for at the peak"))
    for line in _not_known(report, device, moment):
        console.print(Text(line))


def _not_known(report: Report, device: DeviceReport, moment: str) -> Iterator[str]:
    if not device.is_cpu and report.metadata.get("forward_stacks") is False and device.events:
        yield (
            "Activations are among the unknown blocks: without forward_stacks=True, the recording "
            "does not show which blocks an accelerator's backward pass freed."
        )
    found = device.categories
    at_end = found.at_end if found is not None else []
    total = sum(usage.size_bytes for usage in at_end)
    for usage in at_end:
        if usage.forward_bytes >= _LEAST_SHARE * total and usage.forward_bytes:
            yield (
                f"{size(usage.forward_bytes)} of the unknown blocks at the {moment} were allocated "
                "by modules in the forward pass: activations, outputs, temporary tensors, or "
                "memory that modules keep. Only a later free would show which."
            )
    tensors = report.metadata.get("tensors")
    if not isinstance(tensors, dict):
        return
    if gradients := read_number(tensors, "unread_gradients"):
        yield (
            f"The gradients of {number(gradients, 'parameter')} are unknown: another thread than "
            "the training's wrote the file, and torch allows no other thread to read them."
        )
    if unread := read_number(tensors, "unread"):
        yield f"{number(unread, 'owner')} could not be read, so their blocks are unknown."
    if tensors.get("all_modules_found") is False:
        yield (
            "The search for modules that are older than the recording was cut short: their "
            "blocks may be unknown. Start the tracer before the model is made."
        )


def _table(categories: list[CategoryUsage], title: str) -> Table:
    table = new_table("category", "bytes", "share", "", "blocks", "largest", title=title, text=1)
    table.columns[3].justify = "left"
    table.columns[5].justify = "left"
    table.columns[5].overflow = "fold"
    total = sum(usage.size_bytes for usage in categories)
    for usage in categories:
        share = usage.size_bytes / total if total else 0.0
        add_row(
            table,
            printable(usage.category.replace("_", " ")),
            size(usage.size_bytes),
            f"{share:.0%}",
            "█" * round(share * _BAR_WIDTH),
            f"{usage.count:,}",
            _largest(usage),
        )
    return table


def _largest(usage: CategoryUsage) -> str:
    if not usage.owners:
        return ""
    owner = usage.owners[0]
    return f"{size(owner.size_bytes)}: {printable(owner.name)}"
