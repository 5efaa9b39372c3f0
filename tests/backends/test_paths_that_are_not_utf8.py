"""Is a hook used in a folder whose name is not UTF-8, such as that of a HOME?"""

import os
from pathlib import Path

import pytest

from pytracer import _core
from pytracer.errors import HookError


@pytest.mark.parametrize("folder", [b"caf\xc3\xa9", b"caf\xe9"])
def test_the_core_opens_a_hook_in_any_folder(folder: bytes, tmp_path: Path) -> None:
    # GIVEN a file that is no library, in a folder
    path = tmp_path / os.fsdecode(folder) / "hook.so"
    path.parent.mkdir()
    path.write_bytes(b"no library")
    # WHEN the core gets its path, THEN it opens the file, and the linker refuses it
    with pytest.raises(HookError) as error:
        _core.attach_hook(os.fsencode(path))
    # AND the message names the file, with escapes for the bytes that are not UTF-8
    name = os.fsencode(path).decode(errors="backslashreplace")
    assert f"cannot load the hook {name}: " in str(error.value)
    assert "file too short" in str(error.value)
