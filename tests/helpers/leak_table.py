"""Write the table of tests/answers.md from a run of all cases.

python tests/helpers/leak_table.py
"""

import tempfile
from pathlib import Path

import leak_cases

from pytracer.analysis import find_leaks
from pytracer.reading import load
from pytracer.text import size

PAGE = Path(__file__).parents[1] / "answers.md"
BEGIN, END = "<!-- Made by tests/helpers/leak_table.py -->\n\n", "\n<!-- End -->\n"
VERDICTS = {"leak": "leak", "none": "none", "unknown": "can't tell"}


def rows() -> list[str]:
    """Run each case in a process of its own, and return its row."""
    found = ["| case | what is kept | growth per step | verdict |", "|---|---|---|---|"]
    recordings = leak_cases.Recordings("cpu")
    for case in (*leak_cases.LEAKS, *leak_cases.INNOCENTS):
        with tempfile.TemporaryDirectory() as folder:
            path = recordings.record(case, Path(folder, "a.pickle"))
            (device,) = find_leaks(load(path)).devices
        per_step = size(round(device.bytes_per_step)) if device.verdict == "leak" else ""
        what = " ".join((leak_cases.CASES[case].__doc__ or "").split())
        name = case.replace("_", " ")
        found.append(f"| {name} | {what} | {per_step} | {VERDICTS[device.verdict]} |")
    return found


def main() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n".join(rows()) + "\n" + END + after)


if __name__ == "__main__":
    main()
