"""Draw the pictures of the README: the answer to an OOM, and what took the memory of a GPT.

The text is the output of commands on the pages how-to/out-of-memory.md and
how-to/what-takes-memory.md. `run_examples.py` put the output there, so the pictures are as real as
the pages.
"""

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent

CHARACTER, LINE, MARGIN = 7.8, 17, 16
COLUMNS, NOTE_COLUMNS = 104, 34


@dataclass(frozen=True)
class Picture:
    """A picture of a part of a page."""

    path: Path  # the picture's file
    page: Path  # the page
    title: str  # the picture's title
    command: str  # the command at which the picture begins; it ends where the page's block ends
    first_table: str  # how the line begins before which the answer ends
    # Pairs of the pattern of a line, and the lines of its annotation, in their order.
    notes: tuple[tuple[str, tuple[str, ...]], ...]
    note_column: int  # where the annotations begin, in characters


PICTURES = (
    Picture(
        path=DOCS / "answer.svg",
        page=DOCS / "how-to/out-of-memory.md",
        title="The answer of pytracer show to an out-of-memory error",
        command="$ pytracer show",
        first_table=" more",
        notes=(
            (r"^ asked", ("the line that asked for too much",)),
            (r"^ lines", ("the line of your program that", "held most when memory ran out")),
            (r"^ do", ("to paste into your shell",)),
        ),
        note_column=104,
    ),
    Picture(
        path=DOCS / "categories.svg",
        page=DOCS / "how-to/what-takes-memory.md",
        title="What took the memory of a GPT, by category and by module",
        command="$ pytracer show gpt.pickle",
        first_table="$ pytracer show gpt.pickle --by category",
        notes=(
            (r"│ activation", ("checkpointing makes this smaller,",)),
            (r"│ optimizer state", ("and a sharded optimizer this",)),
            (r"│ layers", ("with the weights, gradients, states", "and activations of the layer")),
        ),
        note_column=60,
    ),
)


def lines_of(picture: Picture) -> list[str]:
    """Return the lines of a picture: its commands, and all that they print."""
    page = picture.page.read_text()
    session = page[page.index(picture.command) :]
    return session[: session.index("\n```")].splitlines()


def text(x: float, y: float, content: str, style: str) -> str:
    """Return one line of text; its width is fixed, so that tables align in every font."""
    width = len(content) * CHARACTER
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" textLength="{width:.1f}" '
        f'xml:space="preserve">{escape(content)}</text>'
    )


def drawing(picture: Picture) -> str:
    """Return a picture as SVG."""
    lines = lines_of(picture)
    columns = max(COLUMNS, picture.note_column + NOTE_COLUMNS)
    width = 2 * MARGIN + columns * CHARACTER
    height = 2 * MARGIN + len(lines) * LINE
    body, notes = [], list(picture.notes)
    table = next(at for at, line in enumerate(lines) if line.startswith(picture.first_table))
    for number, line in enumerate(lines):
        y = MARGIN + (number + 0.8) * LINE
        style = "answer" if number < table else "line"
        if line.startswith("$ "):
            style = "title"
        body.append(text(MARGIN, y, line, style))
        if notes and re.search(notes[0][0], line):
            start = MARGIN + (len(line) + 0.5) * CHARACTER
            x = MARGIN + picture.note_column * CHARACTER
            words = notes.pop(0)[1]
            body.append(
                f'<path d="M{x - 6:.1f} {y - 4:.1f} H{start:.1f}" class="arrow" '
                'marker-end="url(#head)"/>'
            )
            body += [text(x, y + row * LINE, part, "note") for row, part in enumerate(words)]
    return f"""<svg xmlns="http://www.w3.org/2000/svg" role="img" font-size="13"
font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
viewBox="0 0 {width:.0f} {height:.0f}">
<title>{picture.title}</title>
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
    """Write the pictures."""
    for picture in PICTURES:
        picture.path.write_text(drawing(picture))


if __name__ == "__main__":
    main()
