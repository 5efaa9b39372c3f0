"""Test the categories of all blocks of an accelerator's trace against the truth."""

from types import ModuleType
from typing import Any

import life_truth
import pytest
from life_programs import PROGRAMS

from pytracer.backends.hook_attach import HOOKS


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_no_block_has_a_wrong_category(program: Any, backend: str, device: ModuleType) -> None:
    assert HOOKS.reads_autograd
    found = life_truth.check(program, backend)
    rules = found["rules"]
    assert rules["activation", "freed_by_node"]
    assert rules["temporary", "within_backward"]
