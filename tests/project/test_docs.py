"""Tests of docs/: links resolve, and generated pages agree with the code."""

import re
import sys
from pathlib import Path

import generate
import pytest
import run_examples
from all_texts import problem, sentences, texts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        # The site has only what is in docs/.
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


READ = PAGES[1:]  # without the CHANGELOG


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short_and_plain(page: Path) -> None:
    # GIVEN a page without blocks of code, comments and headings
    text = FENCE.sub("", page.read_text())
    text = re.sub(r"(?<=\n\n)    (?![-*] ).*?(?=\n\n)|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|^#.*$", "code", LINK.sub("]", text), flags=re.MULTILINE)
    # WHEN paragraphs, cells of tables and items of lists, whose terms end at a colon, are divided
    for part in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |\|", text):
        part = re.sub(r"^([^.:]*):\s", r"\1. ", " ".join(part.split()))
        for sentence in re.split(r"(?<=[.!?])[\"*_)\]]*\s", part):
            # THEN each sentence can be said aloud
            assert not problem(sentence), sentence


def test_texts_of_the_program_are_short_and_plain() -> None:
    assert not [(place, s) for place, text in texts() for s in sentences(text) if problem(s)]


def test_every_page_can_be_reached() -> None:
    # GIVEN the index of the documentation and the navigation of the site
    index = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "index.md").read_text())}
    navigation = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    # THEN each page is in both
    pages = set(DOCS.rglob("*.md"))
    assert pages == {DOCS / name for name in navigation}
    assert pages - {DOCS / "index.md"} <= index


def test_generated_pages_are_up_to_date() -> None:
    assert generate.out_of_date() == []


def test_an_outdated_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "reference/options.md"
    monkeypatch.setitem(generate.PAGES, page, lambda: "another page")
    assert generate.out_of_date() == [page]


def test_commands_of_a_page_are_run(tmp_path: Path) -> None:
    # GIVEN a page with a program, a command that works and one that fails
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="two.py"\nprint(1 + 1)\n```\n\n'
        "```console\n$ python two.py\nold output\n$ false\n```\n"
    )
    # WHEN the page is run
    text, failures = run_examples.run_page(page, lambda line: None, sys.executable)
    # THEN it has the new output, and the failure is reported
    assert "```console\n$ python two.py\n2\n$ false\n```\n" in text
    assert failures == ["$ false\n"]


@pytest.mark.slow
@pytest.mark.long
def test_the_tutorial_works() -> None:
    text, failures = run_examples.run_page(DOCS / "tutorial.md", lambda line: None, sys.executable)
    assert failures == []
    assert "NO PROBLEM FOUND" in text
    assert "out of memory" not in text
