"""Test which blocks had an address."""

from functools import partial
from pathlib import Path

import commands
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.addresses import blocks_at

MIB = 2**20

invoke = partial(commands.invoke, "show")


def test_each_block_that_had_an_address() -> None:
    # GIVEN a block that was freed in step 2, and one that took its place in step 3
    program = Program()
    program.metadata = file_metadata(current_step=3)
    first = program.alloc(1000, ("/job/model.py", "forward", 31), ("/job/train.py", "main", 8))
    freed = len(program.events)
    program.free(first)
    program._end = first
    begun = len(program.events)
    second = program.alloc(2000, ("/job/loss.py", "loss", 5))
    program.metadata["devices"][0]["steps"] = [[1, 0], [2, freed], [3, begun]]
    assert second == first
    # WHEN an address inside of both is asked for
    found = blocks_at(program.snapshot(), first + 100)
    # THEN both are found, with their times, steps and lines
    assert [(block.requested_bytes, block.offset) for block in found] == [(1000, 100), (2000, 100)]
    assert [(block.alloc_step, block.free_step) for block in found] == [(1, 2), (3, None)]
    assert [block.free_event for block in found] == [freed + 1, None]
    assert [block.call_site and block.call_site.line for block in found] == [31, 5]
    assert [caller.name for caller in found[0].callers] == ["main"]
    # AND the first byte after the second block is in neither
    assert blocks_at(program.snapshot(), first + 2048) == []


def test_the_command(tmp_path: Path) -> None:
    program = Program()
    program.metadata = file_metadata()
    address = program.alloc(1000, ("/job/model.py", "forward", 31))
    path = program.write(tmp_path / "a.pickle")
    output = invoke(path, "--address", hex(address)).output
    assert "cuda:0: 1 block had the address, which is in this block at the end." in output
    assert "job/model.py:31 forward" in output
    assert "No block in the recording had this address." in invoke(path, "--address", 1).output
    assert "'here' is no address" in invoke(path, "--address", "here").output


def test_a_file_without_events() -> None:
    program = Program()
    address = program.alloc(1000, ("/job/model.py", "forward", 31), events=False)
    (block,) = blocks_at(program.snapshot(), address)
    assert (block.alloc_event, block.free_event, block.size_bytes) == (None, None, 1024)
