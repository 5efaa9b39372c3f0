"""The headers in a published wheel, without the rest of the wheel.

torch's wheels have hundreds of megabytes, of which the headers are ten. pip names the file that it
would install; the file's list of contents and the headers are then read in parts.
"""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import fsspec

PART_BYTES = 2**20
PYTHON = "3.11"
"""Any Python for which all pinned releases have wheels: their headers are the same for each."""

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")


def locate(requirement: str, machine: str) -> tuple[str, str]:
    """Return the address and the SHA-256 of the wheel that pip would install.

    Args:
        requirement: Such as `torch==2.13.0`.
        machine: Such as `x86_64`.
    """
    platforms = [f"--platform={name}_{machine}" for name in PLATFORMS]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report=-"]
    command += ["--ignore-installed", "--no-deps", "--only-binary=:all:", "--target=build/nothing"]
    # Without this, pip fetches the whole wheel where the registry has no metadata beside it.
    command += ["--use-feature=fast-deps"]
    command += ["--disable-pip-version-check", "--no-warn-conflicts"]
    command += [f"--python-version={PYTHON}", *platforms, requirement]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    (found,) = json.loads(done.stdout)["install"]
    return found["download_info"]["url"], found["download_info"]["archive_info"]["hashes"]["sha256"]


def unpack_headers(url: str, package: str, folder: Path) -> str:
    """Unpack `{package}/include` of the wheel at `url` into `folder`.

    Returns:
        A hash of the names and contents of all headers, in hexadecimal digits.
    """
    prefix = f"{package}/include/"
    contents: dict[str, bytes] = {}
    with (
        fsspec.open(url, block_size=PART_BYTES, cache_type="readahead") as file,
        zipfile.ZipFile(file) as wheel,
    ):
        members = [member for member in wheel.infolist() if member.filename.startswith(prefix)]
        for member in sorted(members, key=lambda member: member.header_offset):
            if not member.is_dir():
                contents[member.filename] = hashlib.sha256(wheel.read(member)).digest()
                # g++ takes files for one, under `#pragma once`, by their times and contents. With
                # equal times, what it reads does not depend on how fast the files were written.
                os.utime(wheel.extract(member, folder), (0, 0))
    if not contents:
        raise SystemExit(f"{url} has no folder {prefix}")
    whole = hashlib.sha256()
    for name, content in sorted(contents.items()):
        whole.update(name.encode() + b"\0" + content)
    return whole.hexdigest()
