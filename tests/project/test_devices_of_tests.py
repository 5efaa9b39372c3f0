"""Check that the table of the accelerators' tests has each module, and nothing else."""

import ast
from pathlib import Path

from devices_of_tests import EACH_BACKEND, EACH_VERSION, ONCE, WHERE, runs_here

TESTS = Path(__file__).parents[1]


def test_each_module_and_function_of_the_table_exists() -> None:
    folders = ("accelerator", "corpus", "devices")
    files = [path for folder in folders for path in TESTS.glob(f"{folder}/test_*.py")]
    modules = {path.stem: path for path in files}
    assert {name for name in WHERE if "::" not in name} == modules.keys()
    for module, _, function in (name.partition("::") for name in WHERE if "::" in name):
        tree = ast.parse(modules[module].read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_where_a_test_runs() -> None:
    assert {place for place, _ in WHERE.values()} == {EACH_VERSION, EACH_BACKEND, ONCE}
    places = [("cuda", "2.12.1"), ("cuda", "2.15.0"), ("npu", "2.13.0"), ("npu", "2.14.0")]
    assert [runs_here("test_parity", "any", *place) for place in places] == [True] * 4
    assert [runs_here("test_cuts", "any", *place) for place in places] == [True, False, True, False]
    assert [runs_here("test_truth", "any", *place) for place in places] == [True] + [False] * 3
    # A function's own line comes before that of its module.
    assert runs_here("test_oom", "any", "npu", "2.14.0")
    assert not runs_here("test_oom", "test_the_number_of_snapshots_is_limited", "npu", "2.14.0")
