"""Test what a running tracer says about its own recording."""

import re

import pytest
import torch

import pytracer
from pytracer.errors import PytracerError


def test_the_report_of_a_running_tracer() -> None:
    # GIVEN a tracer without an output, and a block of this line
    with pytracer.Tracer(device="cpu") as tracer:
        held = torch.empty(1_000_000, dtype=torch.uint8)
        # WHEN the tracer is asked
        report = tracer.report()
        # THEN it names the line, as text and in a notebook, and no command for a file
        assert str(report) == repr(report)
        assert str(report).startswith("NO PROBLEM FOUND ")
        line = r"976.6 KiB  \S+/test_live_answers.py:\d+ test_the_report_of_a_running_tracer"
        assert re.search(line, str(report))
        assert "pytracer " not in str(report)
        assert report._repr_html_().startswith("<pre>NO PROBLEM FOUND ")
        (explanation,) = report.explanations
        assert explanation.holders[0].site.size_bytes == held.numel()


def test_who_holds_memory_now() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        temporary = torch.empty(2_000_000, dtype=torch.uint8)
        del temporary
        tracer.step()
        held = torch.empty(1_000_000, dtype=torch.uint8)
        # THEN the present and the peak are those of the program
        (now,) = tracer.who_holds("step")
        assert [(group.step, group.size_bytes) for group in now.groups] == [(2, held.numel())]
        (peak,) = tracer.who_holds(at="peak")
        assert peak.active_bytes == 2_000_000
        with pytest.raises(PytracerError, match="is unknown: give one of line"):
            tracer.who_holds("colour")


def test_nothing_was_recorded() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        assert str(tracer.report()) == "Nothing was recorded."
