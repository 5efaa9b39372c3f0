"""Make the prebuilt hooks of pytracer's wheels, as `make wheels` does.

python .ci/wheels hooks --output build/ready_hooks                 # for all pinned releases
python .ci/wheels hooks --output build/ready_hooks torch==2.13.0   # for some
python .ci/wheels pin torch==2.16.0                                # after a release of torch
python .ci/wheels audit --output dist build/unrepaired/*.whl       # the platform's tag, and checks
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the sources of the wheel, and not an installed pytracer

import audits  # noqa: E402
import compilation  # noqa: E402
import pins  # noqa: E402
import registry  # noqa: E402

from pytracer.backends.ready_hooks import read_index, write_index  # noqa: E402

STAMP = "made-from"  # the file with the hash of what the hooks in a folder were made from


@click.group()
def main() -> None:
    """Make prebuilt hooks, or pin the releases that get them."""


@main.command("pin")
@click.argument("requirement")
def pin(requirement: str) -> None:
    """Write the hashes of a release into .ci/wheels/pins.json."""
    pins.pin(requirement)


@main.command("hooks")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The folder to make")
@click.argument("requirements", nargs=-1)
def hooks(output: Path, requirements: tuple[str, ...]) -> None:
    """Compile the hooks of the pinned releases, or of those that are named.

    The hooks of each release are kept next to the folder, and made again when what they are made
    from has changed.
    """
    releases = [
        release
        for release in pins.pinned()
        if not requirements or f"{release.distribution}=={release.version}" in requirements
    ]
    if requirements and len(releases) != len(set(requirements)):
        raise SystemExit(f"not all of {' '.join(requirements)} are in {pins.PINS}")
    inputs = inputs_hash()
    parts = [output.with_name(f"{output.name}-parts") / one.requirement for one in releases]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one, part: make(one, part, inputs), releases, parts))
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    for part in parts:
        for library in part.glob("*.so"):
            shutil.copy2(library, output)
    ready = [hook for part in parts for hook in read_index(part)]
    write_index(output, ready)
    size = sum(path.stat().st_size for path in output.iterdir())
    print(f"{output}: {len(ready)} hooks for {len(releases)} releases, {size / 1e6:.1f} MB")


@main.command("version")
@click.argument("tag", required=False)
def version(tag: str | None) -> None:
    """Print the version, if TAG names it and CHANGELOG.md describes it."""
    number = audits.version()
    if tag is not None and tag != f"v{number}":
        raise SystemExit(f"the tag is {tag}, and pyproject.toml has version {number}")
    if tag is not None and not audits.changelog_has(number):
        raise SystemExit(f"CHANGELOG.md has no section `## {number} (YYYY-MM-DD)`")
    print(number)


@main.command("audit")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The folder to make")
@click.argument("wheels", nargs=-1, type=click.Path(exists=True, path_type=Path), required=True)
def audit(output: Path, wheels: tuple[Path, ...]) -> None:
    """Give wheels the tag of the platforms on which they run, and check them."""
    for wheel in wheels:
        audits.audit(wheel, output)


def make(release: pins.Release, part: Path, inputs: str) -> None:
    """Make the folder of one release's hooks. Its headers are fetched and removed again."""
    stamp = part / STAMP
    if stamp.is_file() and stamp.read_text() == inputs:
        return
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as headers:
        write_index(part, compilation.compile_release(release, Path(headers), part))
    stamp.write_text(inputs)
    print(release.requirement, flush=True)


def inputs_hash() -> str:
    """Return a hash of what decides what the hooks are: sources, options and the compiler.

    A release's own files are fixed by its pin.
    """
    command = compilation.cxx()
    version = subprocess.run([*command, "--version"], capture_output=True, check=True).stdout
    backends = ROOT / "pytracer" / "backends"
    files = [
        *sorted((ROOT / "csrc" / "hooks").rglob("*.*")),
        Path(compilation.__file__),
        Path(registry.__file__),
        *(backends / f"{name}.py" for name in ("hook_compile", "ready_hooks")),
    ]
    parts = [repr(command).encode(), version, *(path.read_bytes() for path in files)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


if __name__ == "__main__":
    main()
