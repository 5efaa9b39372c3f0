"""Write the figures of bench/results into the pages of `PAGES`.

The function NAME makes the table between `<!-- NAME -->` and `<!-- /NAME -->`. Cells are medians,
with the minimum and maximum over the processes in parentheses; in bench/README.md medians alone.
"""

import argparse
import functools
import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness import BASE, DEFAULT, NATIVE, OURS, RESULTS, summary, where

from startup import FIGURES as STARTUP

ROOT = Path(__file__).parents[1]
DEVICES = {"cuda": "CUDA", "npu": "NPU", "cpu": "CPU"}
NAMES = {
    "off": "nothing (noise)",
    "empty tracker": "a tracker that does nothing",
    "attached": "hook attached, not recording",
    "no stacks": "recording without stacks",
    "alloc": "with the allocation's stack",
    "all": "with the allocation's and the free's stack",
    DEFAULT: "**by default: with forward stacks, too**",
    "native python": "torch's own recorder, Python stacks",
    "native all": "torch's own recorder, Python and C++ stacks (its default)",
}
TRUE = {
    "verdict": "the first line is right",
    "keeper": "the keeper is named",
    "line": "a leak's line is named",
    "rate": "its bytes a step, within 2 %",
    "advice": "what helps is advised",
    "remedy": "what helps, applied, helps",
}


def results(name: str, device: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}_{device}.json").read_text())
    return found


def spread(summary: dict[str, float], form: str, scale: float = 1) -> str:
    least, median, most = (format(summary[key] * scale, form) for key in ("min", "median", "max"))
    return f"{median} ({least} .. {most})" if summary["min"] < summary["max"] else median


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pairs(device: str, through: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (figure["configuration"], figure["frames"]): figure
        for figure in results("per_event", device)["figures"]
        if figure["through"] == through
    }


def steps(device: str, situation: str, clock: str) -> dict[str, Any]:
    (found,) = (
        entry
        for entry in results("per_step", device)["figures"]["situations"]
        if (entry["situation"], entry["clock"]) == (situation, clock)
    )
    return dict(found)


def dumps(device: str, recorder: str) -> dict[tuple[int, int, str], dict[str, Any]]:
    return {
        (figure["events"], figure["frames"], figure["stacks"]): figure
        for figure in results("dump", device)["figures"]
        if figure["recorder"] == recorder
    }


def environment() -> str:
    """List the machines and the number of processes of each configuration."""
    files: dict[str, list[str]] = {}
    for name in ("per_event", "per_step", "threads", "dump", "growth", "startup"):
        for device in DEVICES:
            path = RESULTS / f"{name}_{device}.json"
            if path.exists():
                found = json.loads(path.read_text())
                files.setdefault(where(found), []).append(f"{name} {found['rounds']}")
    return "\n".join(
        f"- {place}. Processes of a configuration: {', '.join(names)}"
        for place, names in files.items()
    )


def overhead() -> str:
    """Make the table of the overhead of performance.md."""
    cuda, cpu = pairs("cuda", "raw"), pairs("cpu", "empty")
    step = results("per_step", "cuda")["figures"]["step"]["pairs"]
    percent = steps("cuda", "quiet", "wall")["added"]
    rows = []
    for name in ("attached", *OURS, *NATIVE):
        cells = [
            spread(found[name, frames]["added_ns"], ".0f") if (name, frames) in found else "-"
            for found in (cuda, cpu)
            for frames in (5, 40)
        ]
        rows.append([NAMES[name], *cells, spread(percent[name]["percent"], ".1f") + " %"])
    head = ["CUDA, 5 Python frames", "CUDA, 40", "CPU, 5", "CPU, 40"]
    what = "ns added to an allocation and its free"
    return table([what, *head, f"added to a GPT's step, {step} pairs, CUDA"], rows)


def reviewers() -> str:
    """Make the table that reviewers of a framework ask for, of maintainers.md."""
    added = steps("cuda", "quiet", "wall")["added"]
    off = results("startup", "cuda")["figures"]["unset"]
    off_s = sum(off[key]["median"] for key in ("pth_line_s", "entry_point_s"))
    on = [figure["percent"] for figure in (added.get(DEFAULT, added["all"]), added[BASE])]
    full = [dumps("cuda", name)[100_000, 40, "shared"] for name in ("pytracer", BASE)]
    rows = [
        ["off: a program's start with `import torch`, ms", f"{1000 * off_s:.1f}", ""],
        ["on: a GPT's step, whose kernels take no time, %", *(median(one, ".1f") for one in on)],
        ["a dump of 100,000 entries, s", *(median(one["dump_s"], ".3f") for one in full)],
        ["its file, MB", *(median(one["file_bytes"], ".1f", 1e-6) for one in full)],
    ]
    return table(["cost", "pytracer", "torch's own recorder"], rows)


def goals() -> str:
    """Make the table that compares the figures of simulated CUDA with the project's goals."""

    def at_most(
        what: str, limit: float, found: dict[str, float], form: str, unit: str = "", note: str = ""
    ) -> list[str]:
        met = "yes" if found["max"] <= limit else "**no**"
        if found["min"] <= limit < found["max"]:
            met = "undecided"
        return [what, f"≤ {limit:g}{unit}", f"{spread(found, form)}{unit}{note}", met]

    raw, rows = pairs("cuda", "raw"), []
    for frames, limit in ((5, 0.25), (40, 0.15)):
        what = f"a pair, {frames} frames, relative to torch's recorder"
        rows.append(at_most(what, limit, raw["all", frames]["of_native"], ".2f"))
    ours, empty = (raw[name, 5]["added_ns"] for name in ("no stacks", "empty tracker"))
    extremes = [ours["min"] - empty["max"], ours["max"] - empty["min"]]
    more = summary([ours["median"] - empty["median"], *extremes])
    what = "a pair without stacks, more than an empty tracker"
    rows.append(at_most(what, 30, more, ".0f", " ns"))
    for situation in ("quiet", "busy GIL"):
        added = steps("cuda", situation, "wall")["added"]
        theirs = f"; torch's {added[BASE]['percent']['median']:.0f} %"
        what = f"a GPT's step, {situation}"
        rows.append(at_most(what, 3.5, added["all"]["percent"], ".1f", " %", theirs))
    cells = [
        (found["attached", frames]["added_ns"], found["empty tracker", frames]["added_ns"])
        for found in map(functools.partial(pairs, "cuda"), ("raw", "paths", "empty"))
        for frames in sorted({count for _, count in found})
    ]
    alike = sum(hook["min"] <= empty["max"] for hook, empty in cells)
    hook, empty = (raw[name, 5]["added_ns"] for name in ("attached", "empty tracker"))
    found = f"in {alike} of {len(cells)} cells; 5 frames: {spread(hook, '.0f')} ns, "
    found += f"empty tracker {spread(empty, '.0f')} ns"
    met = "yes" if alike == len(cells) else "not in all cells"
    rows.append(["hook attached, but off", "in the range of an empty tracker", found, met])
    dump, native = dumps("cuda", "pytracer"), dumps("cuda", BASE)
    small, large = (dump[size, 40, "shared"] for size in (100_000, 1_000_000))
    resident, extra = (
        {key: value / 1e6 for key, value in small[figure].items()}
        for figure in ("resident_bytes", "dump_extra_bytes")
    )
    rows += [
        at_most("resident, full ring for 100,000 entries, 40 frames", 8, resident, ".1f", " MB"),
        at_most("dump of 100,000 entries", 0.02, small["dump_s"], ".3f", " s"),
        at_most("that, relative to torch's", 0.1, summary([small["of_native"]["dump_s"]]), ".3f"),
        at_most("additional memory of that dump", 10, extra, ".1f", " MB"),
        at_most("dump of 1,000,000 entries", 0.2, large["dump_s"], ".3f", " s"),
    ]
    largest = max(
        entry["file_bytes"]["max"] / native[key]["file_bytes"]["min"]
        for key, entry in dump.items()
        if key in native
    )
    what = "the largest file, relative to torch's"
    rows.append(at_most(what, 1, summary([largest]), ".2f"))
    return table(["what", "goal", "measured", "met"], rows)


def median(summary: dict[str, float], form: str, scale: float = 1) -> str:
    return format(summary["median"] * scale, form)


def per_event(device: str) -> str:
    columns = {
        ("raw", 0): "no frames, C++",
        ("raw", 5): "5 frames",
        ("raw", 40): "40 frames",
        ("paths", 40): "40, two places",
        ("empty", 5): "5, `torch.empty`",
        ("empty", 40): "40, `torch.empty`",
    }
    found = {key: pairs(device, key[0]) for key in columns}
    present = [key for key in columns if any(frames == key[1] for _, frames in found[key])]
    names = [name for name in NAMES if all((name, key[1]) in found[key] for key in present)]
    first = [median(found[key][names[0], key[1]]["off_ns"], ".0f") for key in present]
    rows = [["without recording, in all", *first]]
    for name in names:
        row = []
        for key in present:
            figure = found[key][name, key[1]]
            ratio = (
                f"; {median(figure['of_native'], '.2f')}"
                if name in OURS and "of_native" in figure
                else ""
            )
            row.append(median(figure["added_ns"], ".0f") + ratio)
        rows.append([NAMES[name], *row])
    return table([f"{DEVICES[device]}, ns", *(columns[key] for key in present)], rows)


def per_step(device: str) -> str:
    heads, columns = [], []
    for situation in ("quiet", "busy GIL"):
        found = steps(device, situation, "wall")
        heads.append(f"{situation}: {found['off_ns']['median'] / 1e6:.1f} ms")
        columns.append(found["added"])
    rows = [
        [NAMES[name], *(spread(column[name]["percent"], ".1f") for column in columns)]
        for name in NAMES
        if name in columns[0]
    ]
    return table([f"{DEVICES[device]}, % added to a step", *heads], rows)


def threads(device: str) -> str:
    figures = results("threads", device)["figures"]
    recorders = list(dict.fromkeys(figure["recorder"] for figure in figures))
    layouts: dict[tuple[Any, ...], dict[str, str]] = {}
    for figure in figures:
        layout = (figure["threads"], figure["kind"], figure["devices"])
        layouts.setdefault(layout, {})[figure["recorder"]] = median(
            figure["pairs_per_s"], ".2f", 1e-6
        )
    rows = [
        [f"{layout[0]} {layout[1]}", str(layout[2]), *(found[name] for name in recorders)]
        for layout, found in layouts.items()
    ]
    names = ["without recording", *(NAMES[name] for name in recorders[1:])]
    return table([f"{DEVICES[device]}: threads", "devices", *names], rows)


def dump(device: str) -> str:
    keys = {
        "resident, MB": ("resident_bytes", ".1f", 1e-6),
        "dump, s": ("dump_s", ".3f", 1),
        "additional memory, MB": ("dump_extra_bytes", ".1f", 1e-6),
        "file, MB": ("file_bytes", ".1f", 1e-6),
        "events without a stack": ("dropped", ",.0f", 1),
    }
    rows = []
    for figure in results("dump", device)["figures"]:
        if figure["frames"] in (40, 0):  # 0: those of a training loop
            cells = [
                median(figure[key], form, scale) if key in figure else ""
                for key, form, scale in keys.values()
            ]
            who = "torch" if figure["recorder"] == BASE else "pytracer"
            rows.append([f"{figure['events']:,}", figure["stacks"], who, *cells])
    return table([f"{DEVICES[device]}: events", "stacks", "", *keys], rows)


def growth(device: str) -> str:
    rows = [
        [
            figure["curve"],
            f"{figure['size']:,}",
            *(median(figure[key], ".0f") for key in ("off_ns", "first_added_ns", "added_ns")),
        ]
        for figure in results("growth", device)["figures"]
    ]
    head = ["curve", "size", "without recording", "added at first", "added from then on"]
    return table([f"{DEVICES[device]}: {head[0]}", *head[1:]], rows)


def startup() -> str:
    found = {device: results("startup", device)["figures"] for device in DEVICES}
    rows = [
        [mode, what, *(median(found[device][mode][key], ".3g", 1000) for device in DEVICES)]
        for (mode, key), what in STARTUP.items()
    ]
    return table(["case", "ms of", *DEVICES.values()], rows)


def gpu() -> str:
    """Make the table of a real GPU for bench/README.md."""
    found = pairs("cuda_h200", "raw")
    rows = [
        [
            NAMES[name],
            *(spread(found[name, frames]["added_ns"], ".0f") for frames in (5, 40)),
            *(
                spread(found[name, frames]["of_native"], ".2f") if name in OURS else ""
                for frames in (5, 40)
            ),
        ]
        for name in ("off", "empty tracker", "attached", *OURS, *NATIVE)
        if (name, 5) in found
    ]
    head = ["5 Python frames", "40", "5, relative to torch's recorder", "40"]
    return table(["ns added to an allocation and its free", *head], rows)


def truth() -> str:
    """Make the table of how often the answer is true, and the list of what is wrong today."""
    devices = [device for device in DEVICES if (RESULTS / f"truth_{device}.json").exists()]
    found = [results("truth", device)["figures"] for device in devices]

    def of(kind: str, says: Callable[[dict[str, Any]], bool]) -> list[str]:
        """Return for each device of how many programs that may be of a kind the answer says so."""
        chosen = ([row for row in rows if kind in row["kinds"]] for rows in found)
        return [f"{sum(map(says, rows))}/{len(rows)}" for rows in chosen]

    rows = [["programs", *(str(len(each)) for each in found)]]
    best = (sum(row["found"] == row["kinds"][0] for row in each) for each in found)
    rows.append(["the first line is the best of several", *map(str, best)])
    for kind, what in (("leak", "leaks found"), ("healthy", "healthy programs accused")):
        counted = kind == "leak"
        rows.append([what, *of(kind, lambda row, counts=counted: row["true"]["verdict"] == counts)])
        for rule in ("growth", "trend"):
            by_rule = of(kind, lambda row, rule=rule: row["rules"][rule])
            rows.append([f"{what}, by {rule}", *by_rule])
    for name, what in TRUE.items():
        stated = ([row["true"][name] for row in each if name in row["true"]] for each in found)
        rows.append([what, *(f"{sum(true)}/{len(true)}" for true in stated)])
    nameless = ([part for row in each if (part := row["nameless"]) is not None] for each in found)
    means = (f"{100 * statistics.mean(parts):.1f} %" for parts in nameless)
    rows.append(["memory without a name, mean", *means])
    wrong = [f"`{row['name']}`" for row in found[0] if not all(row["true"].values())]
    heads = [DEVICES[device] for device in devices]
    return f"{table(['', *heads], rows)}\n\nWrong on {heads[0]}, in part: {', '.join(wrong)}."


MAKERS = (environment, overhead, reviewers, goals, startup, gpu, truth)
TABLES = {make.__name__: make for make in MAKERS}
DEVICE_TABLES = {make.__name__: make for make in (per_event, per_step, threads, dump, growth)}
NAMES_OF_PAGES = (
    *("docs/explanation/performance", "docs/explanation/fidelity", "docs/how-to/maintainers"),
    "bench/README",
)
PAGES = [ROOT / f"{name}.md" for name in NAMES_OF_PAGES]


def filled(text: str) -> str:
    """Return the text of a page with its tables made from the current results."""

    def fill(match: re.Match[str]) -> str:
        name, _, device = match[1].partition(" ")
        content = DEVICE_TABLES[name](device) if device else TABLES[name]()
        return f"<!-- {match[1]} -->\n{content}\n<!-- /{match[1]} -->"

    return re.sub(r"<!-- ([\w ]+) -->.*?<!-- /\1 -->", fill, text, flags=re.DOTALL)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for path in PAGES:
        path.write_text(filled(path.read_text()))
        print(path)


if __name__ == "__main__":
    main()
