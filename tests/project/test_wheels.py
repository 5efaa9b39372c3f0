"""Test what `make wheels` makes, as far as it needs no network."""

import json
import re
import shutil
import tomllib
import zipfile
from pathlib import Path

import audits
import compilation
import links
import pytest
import torch
from pins import Release

import pytracer
from pytracer.backends.ready_hooks import ReadyHook
from pytracer.backends.running_torch import TorchBuild

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / ".ci/wheels"


def test_every_release_that_tests_run_on_is_pinned() -> None:
    # GIVEN the releases of the Makefile
    makefile = (ROOT / "Makefile").read_text()
    (hooks,) = re.findall(r"^TESTED_HOOKS := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    (names,) = re.findall(r"^ACCELERATORS := (.*)$", makefile, re.MULTILINE)
    tested = {
        f"{'torch-npu' if backend == 'npu' else 'torch'}=={version}"
        for backend, version in (name.split("-") for name in names.split())
    }
    # THEN the wheel of `make test` has their hooks, and their files are pinned by hash
    pinned = json.loads((WHEELS / "pins.json").read_text())
    wanted = set(hooks.replace("\\", "").split())
    assert tested <= wanted
    assert wanted <= {f"{name}=={version}" for name in pinned for version in pinned[name]}
    for versions in pinned.values():
        for machines in versions.values():
            hashes = [digest for machine in machines.values() for digest in machine.values()]
            assert len(hashes) == 4
            assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes)


def test_a_hook_compiled_twice_is_the_same_to_the_byte(tmp_path: Path) -> None:
    made: list[ReadyHook] = []
    contents = []
    for place in ("here", "somewhere/else"):
        # GIVEN the headers of one torch in a folder of their own
        headers, output = tmp_path / place / "headers", tmp_path / place / "hooks"
        (headers / "torch/lib").mkdir(parents=True)
        output.mkdir()
        installed = Path(torch.__file__).parent / "include"
        for folder in ("c10", "torch/headeronly"):
            if (installed / folder).is_dir():
                shutil.copytree(installed / folder, headers / "torch/include" / folder)
        compilation.make_stand_ins(headers / "torch/lib")
        # WHEN
        build = TorchBuild("9.9.0", headers / "torch", True)
        release = Release("torch", "9.9.0")
        hook = compilation.compile_hook("cpu", release, build, headers, output)
        made.append(hook)
        contents.append((output / hook.library).read_bytes())
    # THEN neither the index's entry nor the library depends on the folder
    assert made[0] == made[1]
    assert contents[0] == contents[1]
    assert str(tmp_path).encode() not in contents[0]


def test_a_library_has_no_path_of_the_machine_that_compiled_it() -> None:
    # GIVEN the compiled libraries of the installed package, which is built in this checkout
    libraries = [path for folder in pytracer.__path__ for path in Path(folder).rglob("*.so")]
    assert {"_core", "_reader"} <= {library.name.partition(".")[0] for library in libraries}
    for library in libraries:
        content = library.read_bytes()
        # THEN no library depends on the folder of the checkout, or on pip's temporary one
        assert f"{ROOT}/".encode() not in content, library
        assert b"/pip-" not in content, library


def test_the_workflow_of_a_release_runs_what_exists() -> None:
    # GIVEN
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    # THEN it starts .ci/wheels with commands that exist
    started = re.findall(r"bin/python (\S*wheels) (\w+)", workflow)
    assert {command for _, command in started} == {"version", "audit"}
    assert len(re.findall(r"python3 \.ci/wheels/links\.py", workflow)) == 2
    for script, command in started:
        assert ROOT / script.removeprefix("{project}/") == WHEELS
        assert f'@main.command("{command}")' in (WHEELS / "__main__.py").read_text()
    # AND the Makefile has its targets
    targets = re.findall(r": make (?:\w+=\S* )*(\S+)", workflow)
    assert len(targets) == 4
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


def test_the_links_of_a_release_lead_to_its_repository() -> None:
    # GIVEN the README and the project's table
    readme, pyproject = ((ROOT / name).read_text() for name in ("README.md", "pyproject.toml"))
    # WHEN they are made ready for a release
    text = links.absolute(readme, "https://example.org/a/b", "v1")
    project = tomllib.loads(links.with_urls(pyproject, "https://example.org/a/b", "v1"))["project"]
    # THEN no link of the README is relative, and nothing but links has changed
    assert all("://" in link for link in re.findall(r"\]\(([^)\s]+)\)", text))
    assert "](https://example.org/a/b/raw/v1/docs/answer.svg)" in text
    assert re.sub(r"https://example\.org/a/b/\w+/v1/", "", text) == readme
    # AND the urls are there, and all else stays
    assert project.pop("urls")["Repository"] == "https://example.org/a/b"
    assert project == tomllib.loads(pyproject)["project"]


def test_the_recipe_for_conda_needs_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / ".ci/conda/recipe.yaml").read_text()
    run = re.findall(r"^    - (\S+ >=\S+)$", recipe[recipe.index("  run:") :], re.MULTILINE)
    assert sorted(run) == sorted(need.replace(">=", " >=") for need in project["dependencies"])
    assert f'version: "{project["version"]}"' in recipe
    for name, target in project["scripts"].items():
        assert f"- {name} = {target}\n" in recipe


@pytest.mark.parametrize(
    ("changelog", "described"),
    [
        ("## 1.2.0 (2027-01-31)\n", True),
        ("# Changelog\n\n## 1.3.0 (unreleased)\n\n## 1.2.0 (2027-01-31)\n", True),
        ("## 1.2.0 (unreleased)\n", False),
        ("## 1.2.01 (2027-01-31)\n", False),
        ("### 1.2.0 (2027-01-31)\n", False),
    ],
)
def test_a_release_needs_a_section_of_the_changelog(
    changelog: str, described: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    monkeypatch.setattr(audits, "ROOT", tmp_path)
    assert audits.changelog_has("1.2.0") == described


def test_a_wheel_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    # GIVEN the same files in the checkouts of two users
    copies = []
    for umask in (0o022, 0o077):
        wheel = tmp_path / f"{umask:o}.whl"
        with zipfile.ZipFile(wheel, "w") as content:
            for name, mode in (("a/", 0o40777), ("a/b.py", 0o100666), ("a/c.so", 0o100777)):
                member = zipfile.ZipInfo(name, (2027, 1, 31, 0, 0, 0))
                member.external_attr = (mode & ~umask) << 16
                content.writestr(member, b"" if name == "a/" else b"content")
        # WHEN their wheels are audited
        audits.copy_without_umask(wheel, tmp_path / f"{umask:o}-copy.whl")
        copies.append((tmp_path / f"{umask:o}-copy.whl").read_bytes())
    # THEN the bytes are the same, and all users can read the files
    assert copies[0] == copies[1]
    with zipfile.ZipFile(tmp_path / "77-copy.whl") as copy:
        modes = {member.filename: member.external_attr >> 16 for member in copy.infolist()}
    assert modes == {"a/": 0o40755, "a/b.py": 0o100644, "a/c.so": 0o100755}
