"""Tests of allocator settings as text: merging, environment variables, and readable errors."""

import os
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import run

import pytracer
from pytracer.errors import ConfigError, HookError, PytracerError
from pytracer.settings import change, running
from pytracer.settings.change import check_in_new_process, in_force, variables
from pytracer.settings.keys import is_shown_as, refusal, shown_value
from pytracer.variables import format_settings, merge_settings, parse_settings

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")
GENERAL, CUDA, NPU = NAMES

words = st.text("abcxyz_019.>", min_size=1, max_size=8)
lists = st.lists(st.tuples(words, words), min_size=1, max_size=3).map(
    lambda pairs: f"[{','.join(f'{size}:{count}' for size, count in pairs)}]"
)
strings = st.dictionaries(words, words | lists, max_size=4)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ("", "", ""),
        ("", "a:1", "a:1"),
        ("a:1,b:2", "a:3", "a:3,b:2"),
        ("a:1,b:2", "c:3", "a:1,b:2,c:3"),
        ("a:1,b:2,a:3", "", "a:3,b:2"),
        ("b:[256:1,>:8],a:1", "a:2", "b:[256:1,>:8],a:2"),
        ("a:1", "b:[256:1,512:2,>:8],c:x", "a:1,b:[256:1,512:2,>:8],c:x"),
        (" a : 1 , b:[ 256 : 1 , > : 8 ] ", "\ta:2\n", "a:2,b:[256:1,>:8]"),
        ("a:1,", "b:2,", "a:1,b:2"),
    ],
)
def test_merging(before: str, change: str, after: str) -> None:
    assert merge_settings(before, change) == after


@given(strings, strings)
def test_merging_is_that_of_dictionaries(before: dict[str, str], change: dict[str, str]) -> None:
    # WHEN one string is merged into another
    merged = merge_settings(format_settings(before), format_settings(change))
    # THEN each key has the later value, or the earlier one if the later string lacks it, in order
    assert list(parse_settings(merged).items()) == list((before | change).items())
    # AND merging it again changes nothing
    assert merge_settings(merged, format_settings(change)) == merged


@pytest.mark.parametrize(
    "wrong", ["a", "a:", ":1", "a:1:2", "a:1,,b:2", ",a:1", "a:[1:2", "a:1]", "a:[[1]]", "a:[]"]
)
def test_a_malformed_string_is_named(wrong: str) -> None:
    for before, new in ((wrong, ""), ("", wrong)):
        with pytest.raises(ConfigError) as error:
            merge_settings(before, new)
        assert f'"{wrong}"' in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Nothing is set. torch_npu refuses its own variable next to the general one, so that is not
        # set.
        ({}, {CUDA: "e:1", NPU: "e:1"}),
        # If several variables are set, the one in use depends on the version, so all get the
        # change.
        ({CUDA: "a:1"}, {CUDA: "a:1,e:1", NPU: "a:1,e:1"}),
        ({NPU: "a:1"}, {CUDA: "e:1", NPU: "a:1,e:1"}),
        ({GENERAL: "a:1"}, {GENERAL: "a:1,e:1", CUDA: "a:1,e:1"}),
        ({GENERAL: "a:1", CUDA: "a:2"}, {GENERAL: "a:1,e:1", CUDA: "a:2,e:1"}),
        ({CUDA: "", GENERAL: "a:1"}, {CUDA: "e:1", GENERAL: "a:1,e:1"}),
        (
            {GENERAL: "a:1,e:0", CUDA: "e:0,a:2", NPU: "a:3"},
            {GENERAL: "a:1,e:1", CUDA: "e:1,a:2", NPU: "a:3,e:1"},
        ),
    ],
)
def test_variables_of_a_new_process(
    before: dict[str, str], after: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN variables that are set here
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    # WHEN a process is to be started with a change
    found = variables("e:1")
    # THEN each variable that may be used has the change, and its earlier content
    assert found == after
    # AND the variables of this process are unchanged
    assert {name: os.environ[name] for name in NAMES if name in os.environ} == before


def test_an_older_torch_npu_has_its_own_variable_next_to_the_general_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a torch_npu that does not know the general variable
    monkeypatch.setattr(running, "torch_npu_is_older", lambda: True)
    monkeypatch.setenv(GENERAL, "a:1")
    # WHEN variables are made, THEN its own variable is set as well
    assert variables("e:1") == dict.fromkeys(NAMES, "a:1,e:1")


@pytest.mark.parametrize(
    ("version", "older"),
    [("2.7.1.post11", True), ("2.9.0.post9", True), ("2.10.0.post7", False), ("2.13.0", False)],
)
def test_which_torch_npu_is_older(
    version: str, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an installed torch_npu
    about = tmp_path / f"torch_npu-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: torch_npu\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    # WHEN it is examined, THEN its version is known without importing it
    assert running.torch_npu_is_older() is older
    assert "torch_npu" not in sys.modules


@pytest.mark.parametrize("name", [CUDA, GENERAL])
def test_a_malformed_variable_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "oops")
    with pytest.raises(ConfigError, match=f'{name}: .*"oops"'):
        variables("a:1")


def test_text_needs_no_torch(tmp_path: Path) -> None:
    # GIVEN a program that only uses strings, WHEN it runs
    program = "import sys; from pytracer import variables; from pytracer.settings import change\n"
    program += "variables.merge_settings('a:1', 'b:2')\n"
    program += "change.variables('a:1'); assert not {'torch', 'numpy'} & set(sys.modules)\n"
    # THEN it imports no torch
    done = run(program, cwd=tmp_path, new=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_new_process_without_an_accelerator() -> None:
    assert check_in_new_process("expandable_segments:True") is None


def test_a_new_process_is_not_started_for_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    with pytest.raises(ConfigError, match='"oops"'):
        check_in_new_process("oops")


def test_a_new_process_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a Python that fails for an unrelated reason
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho 'disk is full' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    # WHEN settings are tried
    with pytest.raises(PytracerError) as error:
        check_in_new_process("a:1")
    # THEN the error reports that reason, and does not blame the settings
    assert not isinstance(error.value, ConfigError)
    assert '"a:1"' in str(error.value)
    assert "disk is full" in str(error.value)


@pytest.mark.parametrize("backend", ["cpu", "cuda", "npu"])
def test_unknown_settings(backend: str) -> None:
    assert in_force(backend) is None


def test_where_there_is_no_accelerator() -> None:
    # GIVEN a torch for the CPU, WHEN its settings are changed, THEN the error says why not
    with pytest.raises(HookError, match="no accelerator"):
        pytracer.expandable_segments(True)
    with pytest.raises(HookError, match="built without CUDA"):
        pytracer.allocator_settings("max_split_size_mb:100", device="cuda")
    with pytest.raises(HookError, match="torch_npu is not installed"):
        pytracer.expandable_segments(False, device="npu")


def test_devices_that_have_no_settings() -> None:
    with pytest.raises(ConfigError, match="CPU allocator has no settings"):
        pytracer.expandable_segments(True, device="cpu")
    with pytest.raises(ConfigError, match="True or False, got 'False'"):
        pytracer.expandable_segments("False")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'cuda:1'"):
        pytracer.expandable_segments(True, device="cuda:1")


NOISE = "\n[ERROR] 2026-11-22-03:04:00 (PID:25256, Device:0, RankID:-1) ERR01003 OPS invalid value"
ASSERTION = 'a < b INTERNAL ASSERT FAILED at "x.cpp":44, please report a bug to PyTorch. '


@pytest.mark.parametrize(
    ("change", "raised", "parts"),
    [
        ("max_split_size_mb:abc", "stoull", ["max_split_size_mb:abc", "a number is expected"]),
        ("max_split_size_mb:99,backend:x", "stoull", ['"backend:x"', "a number"]),
        ("a:True,garbage_collection_threshold:b", "stod", ['"garbage_collection_threshold:b"']),
        (
            "max_split_size_mb:3,expandable_segments:True",
            "CachingAllocator option max_split_size_mb too small, must be >= 20",
            ['"max_split_size_mb:3"', "must be >= 20"],
        ),
        (
            "max_split_size_mb:30,expandable_segments:maybe",
            "Expected 'True' or 'False' at index 6 in ConfigTokenizer but got 'maybe'",
            ['"expandable_segments:maybe"', "'True' or 'False'"],
        ),
        ("a:1", ASSERTION + "Index out of bounds", ['"a:1"', "Index out of bounds"]),
        ("a:1", "Some error, " + NOISE, ['"a:1": Some error']),
        ("a:1", "", ['"a:1"', "no reason"]),
        (
            "expandable_segment:True",
            "Unrecognized key 'expandable_segment' in Accelerator allocator config.",
            ['no setting "expandable_segment"', "did you mean expandable_segments?", "Unrecogn"],
        ),
        (
            "max_split_size:3",
            "Unrecognized CachingAllocator option: max_split_size",
            ['no setting "max_split_size"', "did you mean max_split_size_mb?"],
        ),
        ("foo:1", "Unrecognized key 'foo' in CUDA allocator config.", ['no setting "foo"']),
        (
            "page_size:1g",
            "Unrecognized key 'page_size' in CUDA allocator config.",
            ['no setting "page_size"', "another version or device has it"],
        ),
        (
            "page_size:1g",
            "torch_npu.npu.memory._set_allocator_settings() unsupported setting: page_size" + NOISE,
            ["cannot change page_size", "PYTORCH_NPU_ALLOC_CONF=page_size:1g"],
        ),
    ],
)
def test_errors_are_readable(change: str, raised: str, parts: list[str]) -> None:
    # GIVEN the error of an allocator, of several versions, WHEN it is translated
    backend = "npu" if "npu" in raised else "cuda"
    error = refusal(backend, parse_settings(change), raised)
    # THEN the message names the setting in one line, and contains the allocator's words
    assert isinstance(error, ConfigError)
    assert all(words in str(error) for words in parts), str(error)
    assert not any(words in str(error) for words in ("\n", "ERR0", "please report", "INTERNAL"))


@pytest.mark.parametrize(
    ("key", "actual", "same", "different", "text"),
    [
        ("max_split_size_mb", 100 << 20, "100", "101", "100"),
        ("max_split_size_mb", 100 << 20, "0100", "100x", "100"),
        ("max_split_size_mb", -1, "99999999999999", "-1", None),
        ("pinned_max_cached_size_mb", -(1 << 20), "17592186044415", "1", "17592186044415"),
        ("garbage_collection_threshold", 0.8, "0.80", "0.7", "0.8"),
        ("garbage_collection_threshold", 0.0, "0", "x", None),
        ("expandable_segments", True, "True", "False", "True"),
        ("expandable_segments", False, "False", "0", "False"),
        ("pinned_num_register_threads", 4, "4", "4x", "4"),
        ("roundup_power2_divisions", {"1": 4, "2": 8}, "[1:4,2:8]", "[2:4]", "[1:4,2:8]"),
        ("roundup_power2_divisions", {"1": 4, "32768": 8}, "[1:4,65536:8,>:1]", "4", None),
        ("roundup_power2_divisions", {"1": 0, "2": 0}, "[1:0]", "[1:2]", None),
    ],
)
def test_values_that_are_shown(
    key: str, actual: object, same: str, different: str, text: str | None
) -> None:
    # GIVEN a value as CUDA's allocator shows it, WHEN strings are compared with it, THEN equal ones
    # match
    assert is_shown_as(key, same, {key: actual})
    assert not is_shown_as(key, different, {key: actual})
    if text is not None:
        assert shown_value(key, {key: actual}) == text
        assert is_shown_as(key, text, {key: actual})
    elif not isinstance(actual, dict) or not any(actual.values()):
        assert shown_value(key, {key: actual}) is None  # the default, which has no name


class FakeAllocator:
    """An allocator that takes one string, as torch's do: it forgets what the string lacks."""

    def __init__(self) -> None:
        self.text = ""

    def get_allocator_backend(self) -> str:
        return "native"

    def is_initialized(self) -> bool:
        return False


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    fake = FakeAllocator()
    monkeypatch.setattr(change, "torch_module", lambda _: fake)
    monkeypatch.setattr(running, "in_force", lambda _: fake.text)
    monkeypatch.setattr(running, "unmet_settings", lambda *_: {})
    monkeypatch.setattr(running, "reset_by", lambda *_: None)
    monkeypatch.setattr(
        running, "send", lambda _, __, whole: setattr(fake, "text", format_settings(whole))
    )
    monkeypatch.setattr(running, "send_back", lambda _, __, text: setattr(fake, "text", text))
    return fake


CHANGES = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("123"), min_size=1), max_size=5
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("123")), CHANGES, st.randoms())
def test_changes_end_in_any_order(
    allocator: FakeAllocator, begin: dict[str, str], changes: list[dict[str, str]], rng: Random
) -> None:
    # GIVEN changes one after the other, as of overlapping contexts
    allocator.text = format_settings(begin)
    made = [change.AllocatorSettings("cuda", format_settings(each)) for each in changes]
    ended: set[int] = set()
    for number in rng.sample(range(len(made)), len(made)):
        # WHEN one ends
        made[number].__exit__(None, None, None)
        ended.add(number)
        # THEN the settings are those of the others, in the order in which they were made
        wanted = dict(begin)
        for other, each in enumerate(changes):
            wanted |= {} if other in ended else each
        assert parse_settings(allocator.text) == wanted
    # AND in the end they are as they were
    assert parse_settings(allocator.text) == begin


def test_a_change_for_good_inside_another_stays(allocator: FakeAllocator) -> None:
    # GIVEN a change for a while, in which others are made for good
    allocator.text = "a:1"
    with change.AllocatorSettings("cuda", "a:2,b:2"):
        change.AllocatorSettings("cuda", "c:3")
        allocator.text += ",d:4"  # by torch's own function
    # WHEN it ends, THEN it takes back what it set
    assert parse_settings(allocator.text) == {"a": "1", "c": "3", "d": "4"}
