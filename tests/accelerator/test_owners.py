"""Test the categories and owners of an accelerator's live blocks against what the program knows."""

import gc
from collections.abc import Callable
from types import ModuleType

import owner_programs
import pytest
from owner_programs import Moments, Program


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch_npu's copies
@pytest.mark.parametrize("make", owner_programs.PROGRAMS, ids=lambda make: make.__name__)
def test_no_block_has_a_wrong_category(
    make: Callable[[Program], Moments], backend: str, device: ModuleType
) -> None:
    if backend == "npu" and make is owner_programs.sparse_gradients:
        pytest.skip("the simulated NPU has no operators of sparse tensors")
    gc.collect()  # the models of other tests: with several models, the names begin with the class
    seen = owner_programs.checked(make, backend)
    assert len(seen) >= 3
    assert not any(sizes.pop("missing") for sizes in seen)
    assert any(sizes.get("parameter") for sizes in seen)
