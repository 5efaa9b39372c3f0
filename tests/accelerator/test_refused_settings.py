"""Which settings are refused, and what is in force afterwards?"""

from pathlib import Path

import pytest
import torch
from processes import run
from settings_state import OTHER_SETTINGS, PROGRAM, State, without_settings

import pytracer
from pytracer.errors import ConfigError
from pytracer.settings import change

REFUSED: dict[str, list[tuple[str, str]]] = {
    "": [
        ("foo:1", 'no setting "foo"'),
        ("expandable_segment:True", "did you mean expandable_segments?"),
        ("expandable_segments:maybe", '"expandable_segments:maybe": Expected'),
        ("expandable_segments", 'malformed from "expandable_segments"'),
    ],
    "cuda": [
        ("max_split_size_mb:abc", '"max_split_size_mb:abc": a number is expected'),
        ("max_split_size_mb:3", '"max_split_size_mb:3": .* must be >= 20'),
        ("max_split_size_mb:200,foo:1", 'has no setting "foo"'),
        ("garbage_collection_threshold:2", '"garbage_collection_threshold:2"'),
        ("roundup_power2_divisions:[256:3]", "roundups"),
        ("backend:cudaMallocAsync", "start the program with PYTORCH_CUDA_ALLOC_CONF=backend:cuda"),
        ("per_process_memory_fraction:0.5", "per_process_memory_fraction cannot be changed"),
        ("pinned_use_background_threads:True", "cannot be changed while the program runs"),
        ("page_size:1g", "another version or device has it"),
    ],
    "npu": [
        ("page_size:1g", "start the program with PYTORCH_NPU_ALLOC_CONF=page_size:1g"),
        ("garbage_collection_threshold:0.5", "cannot change garbage_collection_threshold"),
        ("max_split_size_mb:abc", '"max_split_size_mb:abc": a number is expected'),
        ("expandable_segments:True,max_split_size_mb:100", "refuses expandable segments while"),
        ("release_lock_on_cudamalloc:True", "another version or device has it"),
    ],
}


@pytest.mark.parametrize(
    ("by", "wrong", "message"), [(by, *each) for by, refused in REFUSED.items() for each in refused]
)
def test_refused_settings(state: State, by: str, wrong: str, message: str) -> None:
    if by not in ("", state.backend):
        pytest.skip("the other backend refuses it")
    # GIVEN settings in force
    with pytracer.allocator_settings(OTHER_SETTINGS[state.backend]):
        before = state.all()
        # WHEN wrong settings are requested
        with pytest.raises(ConfigError, match=message) as error:
            pytracer.allocator_settings(wrong)
        # THEN the one-line error names the setting, and no setting has changed
        assert "\n" not in str(error.value)
        assert "ERR0" not in str(error.value)
        assert state.all() == before


def test_a_value_that_the_allocator_misreads(state: State, backend: str) -> None:
    # GIVEN a value of which CUDA's allocator reads only the first digits
    if backend == "npu":
        pytest.skip("torch_npu shows no values")
    before = state.all()
    # WHEN THEN this is detected, reported and undone
    message = '"max_split_size_mb:100x" .* max_split_size_mb is 100; .* than 100x'
    with pytest.raises(ConfigError, match=message):
        pytracer.allocator_settings("max_split_size_mb:100x")
    assert state.all() == before
    # AND it is detected in a new process
    with pytest.raises(ConfigError, match=message):
        change.check_in_new_process("max_split_size_mb:100x")


@pytest.mark.parametrize(
    ("wrong", "applied"),
    [
        ("max_split_size_mb:200,foo:1", "max_split_size_mb:200"),
        *((wrong, "") for wrong in ("oops", "max_split_size_mb:", "max_split_size_mb:x")),
    ],
)
def test_after_a_string_that_the_allocator_refused(
    state: State, wrong: str, applied: str, backend: str
) -> None:
    # GIVEN a string that the allocator refused, perhaps after it had applied a part of it
    if backend == "npu":
        pytest.skip("torch_npu shows no values")
    with pytest.raises((RuntimeError, ValueError)):
        torch._C._accelerator_setAllocatorSettings(wrong)
    # WHEN THEN the settings in force are known
    assert state.settings() == applied
    # AND they can be changed and restored
    before = state.values()["max_split_size"]
    with pytracer.expandable_segments(True):
        assert state.expandable() is True
        assert state.values()["max_split_size"] == before
    assert state.expandable() is False
    assert state.settings() == applied
    torch._C._accelerator_setAllocatorSettings("")


@pytest.mark.parametrize(
    "wrong",
    [
        "foo:1",
        pytest.param("expandable_segments:maybe", marks=pytest.mark.long),
        pytest.param("max_split_size_mb:abc", marks=pytest.mark.long),
    ],
)
def test_a_new_process_refuses(wrong: str, backend: str) -> None:
    with pytest.raises(ConfigError, match=wrong.split(":")[0]) as error:
        change.check_in_new_process(wrong)
    assert "\n" not in str(error.value)


def test_a_process_with_a_wrong_variable(backend: str, tmp_path: Path) -> None:
    # GIVEN a variable that the allocator refuses, WHEN THEN the error of a change says so
    variable = f"PYTORCH_{backend.upper()}_ALLOC_CONF"
    env = without_settings(**{variable: "foo:1"})
    done = run(PROGRAM, backend, "expandable_segments:True", cwd=tmp_path, env=env, new=True)
    assert "ConfigError: " in done.stderr
    assert "'foo'" in done.stderr.splitlines()[-1]
    assert "started with" in done.stderr.splitlines()[-1]
