"""The end of a suite's output: how many tests were skipped, and why."""

import os
from collections import Counter
from importlib.metadata import version

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reasons; append the suite's line to the file that `make test` prints at its end."""
    config = terminalreporter.config
    if hasattr(config, "workerinput"):  # a process of xdist, which ran only a part of the tests
        return
    reports = {key: terminalreporter.getreports(key) for key in ("passed", "failed", "skipped")}
    reports["failed"] += terminalreporter.getreports("error")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports["skipped"])
    why = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    if why:
        terminalreporter.section("skipped tests")
        terminalreporter.line(f"{len(reports['skipped'])} skipped: {why}")
    if suites := os.environ.get("SUITES"):
        name = f"{config.getoption('--device', 'cpu')}, torch {version('torch').split('+')[0]}"
        counts = ", ".join(f"{key} {len(found)}" for key, found in reports.items())
        with open(suites, "a") as file:
            file.write(f"{name}: {counts}{why and ': ' + why}\n")
