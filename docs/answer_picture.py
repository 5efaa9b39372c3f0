"""Draw docs/answer.svg, the picture of the README: the answer to an OOM, with annotations.

The text is the output of `pytracer explain` on the page how-to/out-of-memory.md. `run_examples.py`
put the output there, so the picture is as real as the page.
"""

import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "how-to/out-of-memory.md"
PICTURE = DOCS / "answer.svg"

CHARACTER, LINE, MARGIN = 7.8, 17, 16
COLUMNS = 104
NOTE_COLUMN = 76
COMMAND = "$ pytracer explain"

NOTES = (
    (
        r"│ +[\d.]+ [KMG]iB │ +\d+% │",
        ("the line of your program that", "held most when memory ran out,"),
    ),
    (r"│ ←.* loss_of", ("and what called it",)),
    (r"^  export ", ("to paste into your shell",)),
)


def answer(page: str) -> list[str]:
    """Return the lines of the picture: the command, and all that it prints."""
    session = page[page.index(COMMAND) :]
    return session[: session.index("\n```")].splitlines()


def text(x: float, y: float, content: str, style: str) -> str:
    """Return one line of text; its width is fixed, so that tables align in every font."""
    width = len(content) * CHARACTER
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" textLength="{width:.1f}" '
        f'xml:space="preserve">{escape(content)}</text>'
    )


def drawing(page: str) -> str:
    """Return the picture as SVG."""
    lines = answer(page)
    width = 2 * MARGIN + COLUMNS * CHARACTER
    height = 2 * MARGIN + len(lines) * LINE
    body, notes = [], list(NOTES)
    table = next(at for at, line in enumerate(lines) if line.startswith("Memory held"))
    for number, line in enumerate(lines):
        y = MARGIN + (number + 0.8) * LINE
        style = "answer" if number < table else "line"
        if number == 0 or line.startswith(("Memory held at the out-of-memory", "What to try")):
            style = "title"
        body.append(text(MARGIN, y, line, style))
        if notes and re.search(notes[0][0], line):
            start = MARGIN + (len(line) + 0.5) * CHARACTER
            x = MARGIN + NOTE_COLUMN * CHARACTER
            words = notes.pop(0)[1]
            body.append(
                f'<path d="M{x - 6:.1f} {y - 4:.1f} H{start:.1f}" class="arrow" '
                'marker-end="url(#head)"/>'
            )
            body += [text(x, y + row * LINE, part, "note") for row, part in enumerate(words)]
    return f"""<svg xmlns="http://www.w3.org/2000/svg" role="img" font-size="13"
font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
viewBox="0 0 {width:.0f} {height:.0f}">
<title>The answer of pytracer explain to an out-of-memory error</title>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
orient="auto">
<path d="M0 0L8 4L0 8z" fill="#f6c177"/></marker></defs>
<style>
.line {{ fill: #d6d9e0; }}
.answer {{ fill: #9ccfd8; }}
.title {{ fill: #ffffff; font-weight: bold; }}
.note {{ fill: #f6c177; }}
.arrow {{ stroke: #f6c177; fill: none; stroke-width: 1.3; }}
</style>
<rect width="100%" height="100%" rx="8" fill="#1d2230"/>
{chr(10).join(body)}
</svg>
"""


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(drawing(PAGE.read_text()))


if __name__ == "__main__":
    main()
