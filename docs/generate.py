"""Write the pages of docs/reference/ that are made from the code, and the pictures of the README.

    python docs/generate.py            # write them
    python docs/generate.py --check    # only report which are out of date; status 1 if any

The options come from `pytracer.tracing.options`, the command line from click, the JSON Schema
from the dataclasses of the reports (`json_schema`), and the tables of many files from their schema
and SQL (`fleet_pages`). The page on where it runs comes from `where_it_runs`. Whoever changes one
of these runs this script.
"""

import argparse
import inspect
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent))

import answer_picture
import fleet_pages
import json_schema
import where_it_runs

from pytracer.commands.main import main as command_line
from pytracer.tracing.options import ENVIRONMENT_OPTIONS, OPTIONS

DOCS = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py: change the code that it reads, not this page. -->\n\n"


GROUPS = {
    "What to record": (
        *("device", "steps", "schedule", "memory_snapshot_num_steps", "step_from", "phases"),
        *("forward_stacks", "pinned_memory", "source_lines", "metadata"),
    ),
    "When to write": ("output", "discrete", "dump_signal", "trigger_file", "on_snapshot"),
    "Who writes": ("ranks", "all_ranks", "role"),
    "Limits": (
        *("trace_alloc_max_entries", "stack_depth", "max_stack_bytes"),
        *("max_oom_snapshots", "keep_last"),
    ),
}
"""The options by what a person wants to decide."""


def options_page() -> str:
    """Return docs/reference/options.md."""
    of_environment = ", ".join(map("`{}`".format, ENVIRONMENT_OPTIONS))
    head = f"""Each option has three forms:

- in code, `pytracer.Tracer("out", stack_depth=64)`
- a variable: `PYTRACER_STACK_DEPTH=64`
- an option of [`pytracer run`](command-line.md#pytracer-run): `--stack-depth 64`

A value in the code overrides a variable, and a wrong one raises a `pytracer.ConfigError`. A wrong
variable is logged once, and the option has its default. `PYTRACER=1` starts a tracer of its own,
without any code; then the variables of these options apply only to it: {of_environment}.
"""
    tail = """
## Other variables

- `PYTRACER`: `1` records every process that imports torch. `0` records nothing, whatever the code
  requests.
- `PYTRACER_PATCH_TORCH`: `1` [replaces torch's own recorder](../how-to/torch-recorder.md).
- `PYTRACER_HOOK_DIR`, `PYTRACER_BUILD`, `CXX`: [compiled hooks](../how-to/hooks.md).
"""
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(OPTIONS), {*named} ^ {*OPTIONS}
    parts = ["# Options\n\n", MADE, head]
    for group, names in GROUPS.items():
        parts.append(f"\n## {group}\n\n")
        for option in (OPTIONS[name] for name in names):
            default = f"default `{option.shown_default}`"
            if option.environment_default != option.default:
                default += f", with `PYTRACER=1` `{option.shown_environment_default}`"
            parts.append(f"- **`{option.name}`** ({default}): {option.doc}\n")
    return "".join([*parts, tail])


def command_page() -> str:
    """Return docs/reference/command-line.md."""
    # A command keeps the options for help that its first context has.
    group = click.Context(command_line, info_name="pytracer", **command_line.context_settings)
    commands: dict[str, click.Command] = {}
    for name in command_line.list_commands(group):
        command = command_line.get_command(group, name)
        assert command is not None
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name)
            for part in command.list_commands(inner):
                found = command.get_command(inner, part)
                assert found is not None
                commands[f"{name} {part}"] = found
        else:
            commands[name] = command
    contexts = [click.Context(command, group, name) for name, command in commands.items()]
    rows = [row for context in contexts for row in option_rows(context).items()]
    times = Counter(rows)
    # A text for each name: the sections have the others.
    shared = {name: row for row, name in reversed(rows) if times[row, name] > 1}
    parts = ["# Command line\n\n", MADE]
    parts += [
        "`python -m pytracer` and `torch-pytracer` are the same as `pytracer`, which another "
        "project's package may replace.\n\n",
        "`--help` of each command has examples, and its exit codes: 0, 1 if something failed, 2 if "
        "options or arguments are wrong, and others. `pytracer run` has that of its program.\n\n"
        "## Options of several commands\n\n",
        *reversed(shared.values()),
    ]
    for context in contexts:
        parts += command_section(context, shared.values())
    return "".join(parts)


def option_rows(context: click.Context) -> dict[str, str]:
    """Return the lines on the options of a command, each with the option's name."""
    rows = {}
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if not isinstance(parameter, click.Option) or not record or "--help" in parameter.opts:
            continue
        if context.info_name == "run" and parameter.name in OPTIONS:
            continue
        names, text = record
        text = re.sub(r"(; |\[)x>=\d(?=\])", "", text).replace(" ]", "")  # a range that is obvious
        names = names.replace("INTEGER RANGE", "N").replace("|", "/")
        rows[f"- `{names}`: {escaped(text)}\n"] = parameter.opts[-1]
    return rows


def command_section(context: click.Context, shared: Collection[str]) -> Iterator[str]:
    """Yield the parts of the section of one command."""
    command = context.command
    _, *arguments = command.collect_usage_pieces(context)
    usage = f" `{' '.join(arguments)}`" if arguments else ""
    question, _, _ = inspect.cleandoc(command.help or "").partition("\n\n")
    yield f"\n## pytracer {context.info_name}\n\n{escaped(question)}{usage}\n"
    rows = option_rows(context)
    if context.info_name == "run":
        yield "\nAll [options of a tracer](options.md), such as `--stack-depth 64`, and:\n"
    if own := [row for row in rows if row not in shared]:
        yield f"\n{''.join(own)}"
    if others := [f"`{name}`" for row, name in rows.items() if row in shared]:
        yield f"\nAlso {', '.join(others)}.\n"


def escaped(text: str) -> str:
    """Return a paragraph in which Markdown sees no HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


def fleet_tables_page() -> str:
    """Return docs/reference/fleet-tables.md."""
    return f"# Tables of many files\n\n{MADE}{fleet_pages.tables_page()}"


def where_page() -> str:
    """Return docs/reference/where-it-runs.md."""
    title, text = where_it_runs.page().split("\n\n", 1)
    return f"{title}\n\n{MADE}{text}"


PAGES = {
    DOCS / "reference/where-it-runs.md": where_page,
    DOCS / "reference/options.md": options_page,
    DOCS / "reference/command-line.md": command_page,
    DOCS / "reference/schema.json": json_schema.schema,
    DOCS / "reference/fleet-tables.md": fleet_tables_page,
    DOCS / "reference/fleet-tables.json": fleet_pages.columns,
    **{
        picture.path: partial(answer_picture.drawing, picture)
        for picture in answer_picture.PICTURES
    },
}


def out_of_date() -> list[Path]:
    """Return the files that this script would write differently."""
    return [path for path, made in PAGES.items() if not path.exists() or path.read_text() != made()]


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        if paths := out_of_date():
            sys.exit("\n".join(f"{path} is out of date: run docs/generate.py" for path in paths))
        return
    for path in out_of_date():
        path.write_text(PAGES[path]())
        print(path)


if __name__ == "__main__":
    main()
