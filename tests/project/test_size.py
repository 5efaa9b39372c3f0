"""The size budget: lines of code and words of documentation, which only fall.

Each section of the table is a tree, and each row the size of one of its folders. The limit of a
tree is the sum of its rows: a folder may grow if another one shrinks in the same commit. A line of
code has more than blanks, comments and docstrings. A line that is longer than the formatter allows
counts as several. Only files that git tracks count.

A test fails if a tree is larger than its limit, or more than 2 % smaller. This command writes
today's sizes into the rows, if no limit rises:

    python tests/project/test_size.py

Another test compares all committed versions of the table. A limit may rise only if the same commit
adds an entry to [raised], for example:

    tests/, Repairs = 250 lines: a test of each repaired answer

MAY_RAISE in test_size.py names the issues that may add an entry, one for each tree. No entry may
be removed or changed.
"""

import io
import itertools
import math
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Mapping
from configparser import ConfigParser, DuplicateOptionError
from pathlib import Path, PurePosixPath

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment

ROOT = Path(__file__).parents[2]
TABLE = "tests/project/size_budget.ini"

LANGUAGES = {
    "python": ".py .pyi .pth",
    "cpp": ".cpp .h",
    "typescript": ".ts",
    "javascript": ".mjs",
    "css": ".css",
    "html": ".html",
    "sql": ".sql",
    "yaml": ".yml .yaml",
    "bash": ".ci/run .ci/install-tools tests/devices/simulate",
    "cmake": "CMakeLists.txt",
    "make": "Makefile",
    "data": ".gitignore .gz .ini .json .md .patch .pickle .png .svg .toml .txt .typed LICENSE"
    " pytracer/page/template.html",  # built from web/, which counts
}
"""The suffixes, names or paths of files by language, as pygments calls it."""
LANGUAGE_OF = {key: language for language, keys in LANGUAGES.items() for key in keys.split()}

FOLDERS = ("pytracer/", "csrc/devices/", "csrc/", "web/src/", "tests/", "bench/")
OTHER = "Other code"  # also SQL and stubs, wherever they are
DOCUMENTATION = "The documentation"
TREES = (*FOLDERS, OTHER, DOCUMENTATION)

MAY_RAISE = {
    "Repairs": dict.fromkeys(TREES, math.inf),
    "Dry run": dict.fromkeys(TREES, math.inf),
    "Proven advice": {"pytracer/": 300},
}
"""By how many lines an issue may raise the limit of a tree."""


def language_of(path: PurePosixPath) -> str:
    for key in (str(path), path.name, path.suffix):
        if key in LANGUAGE_OF:
            return LANGUAGE_OF[key]
    raise ValueError(
        f"Cannot count {path}: LANGUAGES in tests/project/test_size.py does not say whether "
        f"{path.suffix or path.name} is code or data. Add it there."
    )


def without_words(text: str, marks: str) -> str:
    """Replace text without marks by `x`: lexers are slow, and no comment or string begins there.

    The prefix of a string stays, as in `r""`, and so do flags after a slash, as in `/a/g`.
    """
    return re.sub(rf"""(?<!/)\b\w(?:[^\n\\"'`#{marks}]*[\w;])?(?![\w"'])""", "x", text)


def python_lines(text: str) -> set[int]:
    found, statement, is_first = set(), [], True
    for token in tokenize.generate_tokens(io.StringIO(without_words(text, r"(){}\[\]")).readline):
        if token.type == tokenize.NEWLINE:
            is_docstring = is_first and all(part.type == tokenize.STRING for part in statement)
            if not is_docstring:
                found.update(*(range(part.start[0], part.end[0] + 1) for part in statement))
            statement, is_first = [], False
        elif token.type == tokenize.INDENT:
            is_first = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.DEDENT):
            statement.append(token)
    return found


def lexed_lines(text: str, language: str) -> set[int]:
    found, line = set(), 1
    if language in ("cpp", "typescript"):
        text = without_words(text, "/*${}")
    for kind, part in get_lexer_by_name(language, stripnl=False).get_tokens(text):
        if kind not in Comment or kind is Comment.Preproc:
            found.update(n for n, words in enumerate(part.split("\n"), line) if words.strip())
        line += part.count("\n")
    return found


def code_lines(text: str, language: str) -> int:
    longest = 100 if language == "python" else 120
    found = python_lines(text) if language == "python" else lexed_lines(text, language)
    lines = text.split("\n")
    return sum(max(1, math.ceil(len(lines[number - 1]) / longest)) for number in found)


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"Cannot count the lines in {root}: git failed. It must be a clone of the project, because "
        f"git lists the files and the earlier tables. {done.stderr}"
    )
    return done.stdout


def tree_of(path: PurePosixPath) -> str | None:
    if language_of(path) != "data":
        folders = () if path.suffix in (".sql", ".pyi") else FOLDERS
        return next((folder for folder in folders if str(path).startswith(folder)), OTHER)
    is_page = path.suffix == ".md" and path.parts[0] in ("docs", "README.md")
    return DOCUMENTATION if is_page else None


def row_of(path: PurePosixPath, tree: str) -> str:
    """Return the name of a file's row: a folder of the tree, or `*` for the files next to them."""
    top = tree if tree in FOLDERS else ""
    first, *rest = str(path).removeprefix(top).split("/")
    return f"{top}{first}/" if rest else f"{top}*" if top else first


def measured(root: Path) -> dict[str, Counter[str]]:
    """Return the sizes of the folders of each tree."""
    sizes: dict[str, Counter[str]] = {tree: Counter() for tree in TREES}
    for path in map(
        PurePosixPath, git(root, "ls-files", "-z", "--error-unmatch", ".").split("\0")[:-1]
    ):
        tree = tree_of(path)
        if tree and (root / path).is_file():  # git also lists files that were just deleted
            text = (root / path).read_text()
            if tree == DOCUMENTATION:
                size = sum(any(map(str.isalnum, word)) for word in text.split())
            else:
                size = code_lines(text, language_of(path))
            sizes[tree][row_of(path, tree)] += size
    return sizes


def parsed(text: str) -> ConfigParser:
    table = ConfigParser(delimiters="=", interpolation=None)
    table.optionxform = str  # do not change the names to lower case
    table.read_string(text)
    return table


def written(sizes: Mapping[str, Mapping[str, int]], raised: Mapping[str, str]) -> str:
    table, stream = parsed(""), io.StringIO()
    table.read_dict({tree: dict(sorted(rows.items())) for tree, rows in sizes.items()})
    table.read_dict({"raised": raised})
    table.write(stream)
    comment = "".join(f"# {line}".rstrip() + "\n" for line in str(__doc__).strip().split("\n"))
    return f"{comment}\n{stream.getvalue().strip()}\n"


def limit_of(table: ConfigParser, tree: str) -> int:
    return sum(map(int, table[tree].values()))


def misfits(root: Path) -> list[str]:
    """Return a sentence for each tree that is larger than its limit, or much smaller."""
    table, found = parsed((root / TABLE).read_text()), []
    for tree, rows in measured(root).items():
        size, limit = rows.total(), limit_of(table, tree)
        unit, units = ("words", "words") if tree == DOCUMENTATION else ("lines", "lines of code")
        beginning = f"{tree} has {size:,} {units}; its limit is {limit:,}"
        if size > limit:
            old = {row: table[tree].getint(row, 0) for row in rows}
            row = max(rows, key=lambda row: rows[row] - old[row])
            found.append(
                f"{beginning}. {row} grew the most: {rows[row]:,} {unit}, {old[row]:,} in the "
                f"table. Delete as many {unit} as you add."
            )
        elif 100 * size < 98 * limit:
            found.append(
                f"{beginning}, which is more than 2 % too high. Lower the numbers in {TABLE}: "
                "run `python tests/project/test_size.py`."
            )
    return found


def rises(before_text: str, after_text: str) -> list[str]:
    """Return a sentence for each limit that rises, and for each wrong entry in [raised]."""
    before, after = parsed(before_text), parsed(after_text)
    found, allowed = [], Counter[str]()
    for entry, _ in sorted(before["raised"].items() - after["raised"].items()):
        found.append(f"The entry '{entry}' of [raised] must stay as it is.")
    for entry, reason in sorted(after["raised"].items() - before["raised"].items()):
        tree, _, issue = entry.partition(", ")
        form = re.fullmatch(r"(\d+) (?:lines|words): .+", reason, re.DOTALL)
        if form and int(form[1]) <= MAY_RAISE.get(issue, {}).get(tree, 0):
            allowed[tree] = int(form[1])
        else:
            found.append(
                f"The entry '{entry} = {reason}' of [raised] is not allowed: it must have the form "
                "'TREE, ISSUE = NUMBER lines: REASON', and stay within MAY_RAISE."
            )
    for tree in TREES:
        old, new = limit_of(before, tree), limit_of(after, tree)
        if new > old + allowed[tree]:
            found.append(
                f"The limit of {tree} rises from {old:,} to {new:,}. New entries of [raised] "
                f"allow {allowed[tree]:,} more."
            )
    return found


def committed(root: Path) -> dict[str, str]:
    """Return each version of the table by its commit, from the oldest to the newest."""
    # A merge is compared with the main line, not with a branch that had not merged another one.
    options = ("--first-parent", "--diff-filter=AM", "--reverse", "--format=%h")
    commits = git(root, "log", *options, "--", TABLE).split()
    return {commit: git(root, "show", f"{commit}:{TABLE}") for commit in commits}


def rises_in_history(root: Path) -> list[str]:
    tables = {**committed(root), "the working copy": (root / TABLE).read_text()}
    return [
        f"In {commit}: {sentence}"
        for (_, before), (commit, after) in itertools.pairwise(tables.items())
        for sentence in rises(before, after)
    ]


def lower(root: Path) -> None:
    """Write today's sizes into the table if no limit rises; make the table if there is none."""
    path, sizes = root / TABLE, measured(root)
    if not path.exists():
        path.write_text(written(sizes, {}))
        return
    old = path.read_text()
    new = written(sizes, parsed(old)["raised"])
    if found := rises([old, *committed(root).values()][-1], new):
        sys.exit("\n".join(found))
    path.write_text(new)


def test_the_project_fits_its_budget() -> None:
    found = misfits(ROOT)
    assert not found, "\n".join(found)


def test_the_budget_only_falls() -> None:
    found = rises_in_history(ROOT)
    assert not found, "\n".join(found)
    if git(ROOT, "rev-parse", "--is-shallow-repository") == "true\n":
        pytest.skip(f"the clone is shallow: compared only {len(committed(ROOT))} committed tables")


PYTHON = '''"""A docstring."""
NAME = 1
"""2, no docstring of a module, class or function"""
# A comment
def f():  # 3
    """A docstring
    of two lines."""

    text = """
    # 5, no comment
    """
    return r"#" + text  # 7
'''
CPP = """#include <a.h>
/* A comment
int x = 1; */
// A comment
int x = 2; /* A comment
ends */ int y = 3;
const char* text = "/*";
const char* raw = R"(
// no comment: " and '
)";
#define A \\
  9
"""
TYPESCRIPT = """/** A comment
 * of two lines. */
// A comment
const a = `
// no comment ${names.map((name) => `<${name.replace(/`/g, "")}>`).join(", ")}
`;
const b = a.replace(/\\/\\*"/g, "'"); /* A comment
*/
"""
SQL = "-- A comment\nSELECT '/*' -- 1\n/* A\ncomment */\nFROM blocks WHERE name = '--'\n"


@pytest.mark.parametrize(
    ("language", "text", "lines"),
    [
        ("python", PYTHON, 7),
        ("cpp", CPP, 9),
        ("typescript", TYPESCRIPT, 4),
        ("sql", SQL, 2),
        ("html", "<!doctype html>\n<!-- A\ncomment -->\n<p>\n\n</p>\n", 3),
        ("make", "# A comment\nall:\n\techo '#'\n", 2),
        ("bash", "#!/bin/sh\n# A comment\necho '#'\n", 1),
        ("yaml", "# A comment\na: true\n# A comment\nb: c\n", 2),
        ("python", f"a = '{'a' * 94}'\nb = '{'b' * 195}'\n", 1 + 3),
        ("cpp", f"// {'a' * 200}\nint a{'a' * 234};\n", 2),
    ],
)
def test_lines_of_code(language: str, text: str, lines: int) -> None:
    assert code_lines(text, language) == lines


def write(root: Path, name: str, lines: int) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("a = 1\n" * lines)
    git(root, "add", "--all")


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=a")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of 1,000 lines with its first table."""
    git(tmp_path, "init", "--quiet")
    for option in ("user.name a", "user.email a@b.c", "commit.gpgsign false"):
        git(tmp_path, "config", *option.split())
    write(tmp_path, "pytracer/analysis/a.py", 200)
    write(tmp_path, "pytracer/tracing/a.py", 800)
    (tmp_path / TABLE).parent.mkdir(parents=True)
    lower(tmp_path)
    commit(tmp_path)
    return tmp_path


def test_a_tree_that_grows_does_not_fit(project: Path) -> None:
    assert misfits(project) == []
    # WHEN 300 lines are added, THEN the sentence names the folder
    write(project, "pytracer/analysis/b.py", 300)
    assert misfits(project) == [
        "pytracer/ has 1,300 lines of code; its limit is 1,000. pytracer/analysis/ grew the most: "
        "500 lines, 200 in the table. Delete as many lines as you add."
    ]
    # AND the script does not raise the limit
    with pytest.raises(SystemExit, match=r"pytracer/ rises from 1,000 to 1,300\. .* allow 0 more"):
        lower(project)
    # WHEN another folder shrinks, also one with a new name, THEN the tree fits
    write(project, "pytracer/tracing/a.py", 500)
    git(project, "mv", "pytracer/tracing", "pytracer/recording")
    assert misfits(project) == []


def test_a_tree_that_shrinks_lowers_its_limit(project: Path) -> None:
    write(project, "pytracer/tracing/a.py", 780)
    assert misfits(project) == []
    # WHEN 3 % of the lines have gone, THEN the table has to follow
    write(project, "pytracer/tracing/a.py", 770)
    assert misfits(project) == [
        "pytracer/ has 970 lines of code; its limit is 1,000, which is more than 2 % too "
        f"high. Lower the numbers in {TABLE}: run `python tests/project/test_size.py`."
    ]
    lower(project)
    assert misfits(project) == []
    # AND no line may come back
    write(project, "pytracer/tracing/a.py", 771)
    assert "has 971 lines of code; its limit is 970." in misfits(project)[0]


def test_each_file_counts_in_one_tree(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    names = """csrc/deleted.h csrc/devices/cuda/a.h csrc/record/a.h csrc/a.h Makefile
        pytracer/fleet/sql/a.sql pytracer/_core.pyi pytracer/page/template.html web/src/a.ts
        web/build.mjs tests/devices/simulate tests/screens/a.txt docs/a.py docs/how-to/a.md
        README.md CHANGELOG.md"""
    for name in names.split():
        write(tmp_path, name, 2)
    (tmp_path / "csrc/untracked.h").write_text("int a;")
    (tmp_path / "csrc/deleted.h").unlink()
    assert measured(tmp_path) == {
        "pytracer/": {},
        "csrc/devices/": {"csrc/devices/cuda/": 2},
        "csrc/": {"csrc/record/": 2, "csrc/*": 2},
        "web/src/": {"web/src/*": 2},
        "tests/": {"tests/devices/": 2},
        "bench/": {},
        OTHER: {"pytracer/": 4, "web/": 2, "docs/": 2, "Makefile": 2},
        DOCUMENTATION: {"docs/": 4, "README.md": 4},
    }
    # AND a file of an unknown kind counts nowhere, which is an error
    write(tmp_path, "tools/a.lua", 2)
    with pytest.raises(ValueError, match=r"Cannot count tools/a\.lua: .* whether \.lua is code"):
        measured(tmp_path)


def budget(lines: int, *entries: str) -> str:
    sizes = {tree: {f"{tree}*": lines * (tree == "pytracer/")} for tree in TREES}
    return written(sizes, dict(entry.split(" = ") for entry in entries))


REPAIRS = "pytracer/, Repairs = 50 lines: a test\n  of each answer"
ADVICE = "pytracer/, Proven advice = 300 lines: proofs"


def test_a_limit_rises_only_with_an_entry() -> None:
    assert rises(budget(1000), budget(990)) == []
    assert rises(budget(1000), budget(1001)) == [
        "The limit of pytracer/ rises from 1,000 to 1,001. New entries of [raised] allow 0 more."
    ]
    # GIVEN an entry, THEN the limit rises by its lines, once
    assert rises(budget(1000), budget(1050, REPAIRS)) == []
    assert len(rises(budget(1000), budget(1051, REPAIRS))) == 1
    assert len(rises(budget(1050, REPAIRS), budget(1051, REPAIRS))) == 1
    assert rises(budget(1050, REPAIRS), budget(1350, REPAIRS, ADVICE)) == []
    # AND the entry stays, alone
    assert rises(budget(1050, REPAIRS), budget(1050)) == [
        "The entry 'pytracer/, Repairs' of [raised] must stay as it is."
    ]
    with pytest.raises(DuplicateOptionError):
        parsed(f"{budget(1050, REPAIRS)}{REPAIRS}")


def test_wrong_entries_are_found() -> None:
    for part, wrong in (
        *(("300", "301"), ("300", "some"), ("pytracer/", "tests/"), (": proofs", "")),
        ("Proven advice", "A wish"),
    ):
        (found,) = rises(budget(1000), budget(1000, ADVICE.replace(part, wrong)))
        assert "of [raised] is not allowed" in found


def test_every_committed_table_is_compared(project: Path) -> None:
    def commit_table(lines: int) -> None:
        (project / TABLE).write_text(budget(lines))
        commit(project)

    # GIVEN a table that fell, also in a branch that was merged
    git(project, "checkout", "--quiet", "-b", "branch")
    commit_table(960)
    git(project, "checkout", "--quiet", "-")
    commit_table(970)
    git(project, "merge", "--quiet", "--strategy=ours", "--no-commit", "branch")
    commit_table(950)
    assert rises_in_history(project) == []
    # WHEN it was deleted, came back higher, and fell again, THEN the rise is found
    (project / TABLE).unlink()
    commit(project)
    commit_table(951)
    commit_table(940)
    (found,) = rises_in_history(project)
    assert re.match(r"In \w+: The limit of pytracer/ rises from 950 to 951\.", found)
    # AND so is that of the working copy
    (project / TABLE).write_text(budget(941))
    assert "In the working copy: The limit" in rises_in_history(project)[1]


if __name__ == "__main__":
    lower(ROOT)
