"""Make the ready hooks of pytracer's wheels, as `make wheels` does.

    python wheels hooks --output build/ready_hooks                 # for all pinned releases
    python wheels hooks --output build/ready_hooks torch==2.13.0   # for some
    python wheels pin torch==2.16.0                                # after a release of torch
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the sources of the wheel, and not an installed pytracer

import compilation
import pins

from pytracer.backends.ready_hooks import ReadyHook, write_index

STAMP = "stamp"


@click.group()
def main() -> None:
    """Make ready hooks, or pin the releases that get them."""


@main.command("pin")
@click.argument("requirement")
def pin(requirement: str) -> None:
    """Write the hashes of a release into wheels/pins.json."""
    pins.pin(requirement)


@main.command("hooks")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The folder to make")
@click.argument("requirements", nargs=-1)
def hooks(output: Path, requirements: tuple[str, ...]) -> None:
    """Compile the hooks of the pinned releases, or of those that are named."""
    releases = [
        release
        for release in pins.pinned()
        if not requirements or f"{release.distribution}=={release.version}" in requirements
    ]
    if requirements and len(releases) != len(set(requirements)):
        raise SystemExit(f"not all of {' '.join(requirements)} are in {pins.PINS}")
    stamp = inputs_hash(releases)
    stamp_file = output.with_name(f"{output.name}.{STAMP}")
    if output.is_dir() and stamp_file.is_file() and stamp_file.read_text() == stamp:
        print(f"{output} is up to date")
        return
    stamp_file.unlink(missing_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [hook for part in pool.map(lambda one: make(one, output), releases) for hook in part]
    ready = compilation.merged(made)
    write_index(output, ready)
    stamp_file.write_text(stamp)
    size = sum(path.stat().st_size for path in output.iterdir())
    print(f"{output}: {len(ready)} hooks for {len(releases)} releases, {size / 1e6:.1f} MB")


def make(release: pins.Release, output: Path) -> list[ReadyHook]:
    """Compile the hooks of one release; its headers are fetched and removed again."""
    with tempfile.TemporaryDirectory() as headers:
        made = compilation.compile_release(release, Path(headers), output)
    print(f"{release.requirement}: {', '.join(hook.library for hook in made)}", flush=True)
    return made


def inputs_hash(releases: list[pins.Release]) -> str:
    """Return a hash of everything that decides what the hooks are."""
    command = compilation.cxx()
    version = subprocess.run([*command, "--version"], capture_output=True, check=True).stdout
    files = [
        *sorted((ROOT / "csrc" / "hooks").rglob("*.*")),
        *sorted((ROOT / "wheels").glob("*.*")),
        *sorted((ROOT / "pytracer" / "backends").glob("*.py")),
    ]
    parts = [repr(releases).encode(), repr(command).encode(), version]
    parts += [path.read_bytes() for path in files if path.is_file()]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


if __name__ == "__main__":
    main()
