"""Test the front end under node, and that the package has the page that web/ builds."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TEMPLATE = Path(__file__).parents[2] / "pytracer" / "page" / "template.html"


def run(web: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=web, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_template_is_built_from_its_sources(web: Path, tmp_path: Path) -> None:
    # GIVEN the sources, and the versions of the lock file
    built = tmp_path / "template.html"
    # WHEN the page is built
    run(web, "node", "build.mjs", str(built))
    # THEN it is the committed one, to the byte
    if built.read_bytes() != TEMPLATE.read_bytes():
        pytest.fail(f"{TEMPLATE} is not what web/ builds: run `npm ci && npm run build` in web/")


def test_the_types_are_right(web: Path) -> None:
    run(web, "npm", "run", "--silent", "check")


def test_the_logic_of_the_views(web: Path) -> None:
    output = run(web, "npm", "run", "--silent", "test")
    assert "# fail 0" in output
    assert "# pass 0" not in output
