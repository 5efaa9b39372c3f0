"""All texts of the program that a person may read, and what no text and no page of docs has.

python tests/helpers/all_texts.py
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDY = re.compile(
    r"\bas of\b|\bis no\b|\bto be had\b|\bin (the )?place of\b|\bmended\b|\bthe first such\b"
    r"|\b(is|are|was) to be\b|\bof which .*\bof which\b|\bfor want of\b"
    r"|^(Of|What) (?!.*(\?|:|for)$)"
)
"""What nobody would say aloud; questions and titles may begin with "What"."""

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`([^`]*)`|//.*|/\*.*?\*/', re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text without its values."""
    yield from re.split(r"(?<=[.!?;:])[\"*_)\]]*\s", " ".join(text.split()))


def problem(sentence: str) -> str:
    """Return what is wrong with a sentence; "" if it can be said aloud."""
    words = len(re.findall(r"\S*\w\S*", sentence))
    found = WORDY.search(sentence)
    return f"{words} words" if words > 30 else found[0] if found else ""


def texts() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each string with at least three words."""
    for folder, suffix in (("pytracer", "py"), ("web/src", "ts"), ("csrc", "cpp"), ("csrc", "h")):
        for path in sorted((ROOT / folder).rglob(f"*.{suffix}")):
            found = _of_python if suffix == "py" else _of_other
            for line, text in found(path.read_text()):
                if len(re.findall(r"(?<!\S)[\w'`(,-]{2,}", text)) > 2:
                    yield f"{path.relative_to(ROOT)}:{line}", text


def _of_python(source: str) -> Iterator[tuple[int, str]]:
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            waiting += ast.iter_child_nodes(node)


def _of_other(source: str) -> Iterator[tuple[int, str]]:
    for match in _LITERAL.finditer(source):
        if match[1] or match[2]:
            text = re.sub(r"\$?\{[^}]*\}", "{}", match[1] or match[2])
            yield source.count("\n", 0, match.start()) + 1, text


if __name__ == "__main__":
    for place, text in texts():
        print(f"{place}: {' '.join(text.split())}")
