"""Put what the attacks found into results/README.md.

A table stands there between `<!-- NAME -->` and `<!-- /NAME -->`; the function of that name below
makes it from results/minutes.json (`make reliability`) and results/soak.json (`make soak`), which
have the figures, seeds and commits of each attack.
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "results/README.md"
RUNS = {"minutes": "make reliability", "soak": "make soak"}
SHOWN_FAILURES = 5
LINE_CHARACTERS = 300


def results() -> dict[str, dict[str, Any]]:
    """What was found, by attack and by run."""
    found: dict[str, dict[str, Any]] = {}
    for run in RUNS:
        path = HERE / "results" / f"{run}.json"
        if path.exists():
            for name, entry in json.loads(path.read_text()).items():
                found.setdefault(name, {})[run] = entry
    return dict(sorted(found.items()))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def latest(runs: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = max(runs.values(), key=lambda each: each["date"])
    return entry


def failed(entry: dict[str, Any]) -> str:
    return f"**{entry['failed']:,}**" if entry["failed"] else "0"


def summary() -> str:
    """Make a row for each attack."""
    rows = []
    for name, runs in results().items():
        row = [f"`{name}`", latest(runs)["title"].rstrip(".")]
        for run in RUNS:
            entry = runs.get(run)
            row += ["-", "-"] if entry is None else [f"{entry['tried']:,}", failed(entry)]
        rows.append([*row, latest(runs)["date"]])
    heads = [f"{what}, `{command}`" for command in RUNS.values() for what in ("tried", "failed")]
    return table(["attack", "what it does", *heads, "last run"], rows) + failures()


def failures() -> str:
    """List what failed and what was left out, with the name of the attack."""
    lines = []
    for name, runs in results().items():
        failed_cases = [(run, line) for run, found in runs.items() for line in found["failures"]]
        lines += [f"- `{name}` failed: `{text[:LINE_CHARACTERS]}`" for text in spread(failed_cases)]
        skipped = {line for found in runs.values() for line in found["skipped"]}
        lines += [f"- `{name}`, not tried here: {line}" for line in sorted(skipped)]
    return "\n\n" + "\n".join(lines) if lines else ""


def spread(lines: list[tuple[str, str]]) -> list[str]:
    """Choose some failures, spread over all of them."""
    step = max(1, len(lines) / SHOWN_FAILURES)
    chosen = [lines[int(at * step)][1] for at in range(min(SHOWN_FAILURES, len(lines)))]
    return [line.replace("`", "'").replace("\n", " ") for line in chosen]


def machines() -> str:
    """Name each environment, with the attacks that ran there."""
    places: dict[str, dict[str, None]] = {}
    for name, runs in results().items():
        for entry in runs.values():
            found = entry["environment"]
            torch = f"torch {found['torch']}"
            if entry["device"] == "cuda":
                torch += " on simulated CUDA devices"
            if entry["device"] == "none":
                torch = "torch not used"
            words = [found["cpu"], f"{found['cores']} cores", f"Linux {found['kernel']}"]
            words += [f"Python {found['python']}", torch, f"pytracer {found['pytracer']}"]
            places.setdefault(", ".join(words), {})[name] = None
    return "\n".join(f"- {place}: {', '.join(names)}" for place, names in places.items())


MADE = {each.__name__: each for each in (summary, machines)}


def filled(text: str) -> str:
    """Return a page with its tables as the results are now."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{MADE[match[1]]()}\n<!-- /{match[1]} -->"

    return re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", fill, text, flags=re.DOTALL)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    PAGE.write_text(filled(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    main()
