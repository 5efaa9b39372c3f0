"""What the simulator says about public reports on torch's allocator, as in public_reports.md."""

from pathlib import Path

import pytest
from public_reports import MIB, REPORTS, STREAMS, row, simulated

PAGE = Path(__file__).with_name("public_reports.md")


def test_the_page_has_what_the_command_prints() -> None:
    assert "\n" + "\n".join(map(row, REPORTS)) + "\n" in PAGE.read_text()


def test_free_blocks_in_expandable_segments_are_not_reused() -> None:
    # THEN memory grows by 138 MiB a cycle with both settings, as in the report, which began with
    # 220 MiB and ended with 14,060; and by the 2 MiB that are kept with one of them
    for report, first, last, per_cycle in zip(
        REPORTS[:3], (140, 140, 158), (14_000, 340, 358), (138.6, 2, 2), strict=True
    ):
        marks, reserved = report.program().marks, simulated(report)["reserved_bytes"] // MIB
        assert (reserved[marks[0]], reserved[marks[-1]]) == (first, last)
        assert (last - first) / 100 == pytest.approx(per_cycle)


def test_the_same_request_fails_and_then_succeeds() -> None:
    report = next(each for each in REPORTS if each.name == "pytorch#189504")
    first, second = report.program().marks
    found = simulated(report)
    assert found["oom_requests"].tolist() == [first]
    assert second == first + 1


def test_memory_of_streams_ends_with_their_number() -> None:
    report = next(each for each in REPORTS if each.name == "vllm#52950")
    reserved = simulated(report)["reserved_bytes"] // MIB
    assert reserved[-1] == STREAMS << 10
    assert len(set(reserved.tolist())) == STREAMS


def test_one_division_of_powers_of_two_does_not_round() -> None:
    first, second = (each for each in REPORTS if "roundup" in each.settings)
    assert [simulated(each)["reserved_bytes"][-1] // MIB for each in (first, second)] == [514, 768]
