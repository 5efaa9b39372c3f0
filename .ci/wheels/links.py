"""Make the links of a release's page lead to the repository that publishes it.

    python .ci/wheels/links.py https://example.org/owner/pytracer v0.1.0

A page of a package has no folder, so the README's relative links and pictures get the address of
the repository at the tag, and pyproject.toml gets `[project.urls]`. The address is not in the
sources, because they do not know from where they are published. It needs no package.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!\w+:|#)([^)\s]+)\)")
BEFORE = "[project.scripts]\n"


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose relative links and pictures are those of the repository."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({repository}/{kind}/{tag}/{found[3]})"

    return LINK.sub(link, text)


def with_urls(pyproject: str, repository: str, tag: str) -> str:
    """Return pyproject.toml with `[project.urls]`."""
    urls = {
        "Repository": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    assert pyproject.count(BEFORE) == 1
    return pyproject.replace(BEFORE, f"[project.urls]\n{table}\n{BEFORE}")


def main() -> None:
    """Change the README and pyproject.toml of this checkout."""
    repository, tag = sys.argv[1:]
    for name, change in (("README.md", absolute), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(change(path.read_text(), repository, tag))


if __name__ == "__main__":
    main()
