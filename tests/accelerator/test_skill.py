"""Test docs/skill/SKILL.md: its commands lead from five planted out-of-memory errors to the fix.

The test does what the page tells an agent to do. The oracle is how each program was made
(tests/corpus), and that it passes with the fix.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import processes
import pytest
from commands import invoke

SKILL = Path(__file__).parents[2] / "docs/skill/SKILL.md"
ROW = re.compile(r"^ *\| ([^|`]+) \| `pytracer ([^`]+)` \| `(\w+)", re.MULTILINE)
EXPANDS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

# By program: a part of the advice, a part of what looking further finds, and the fix.
PLANTED = {
    "running_loss": ("Look at `running`", '"name": "running_loss"', {"REMEDY": "1"}),
    "errors_are_kept": ("failures[…]", "failures[…]", {"REMEDY": "1"}),
    "varying_lengths": ("expandable_segments:True", "expandable_segments:True", EXPANDS),
    "shared_card_with_a_limit": ("Raise or remove the limit", "", {"REMEDY": "1"}),
    "fails_in_backward": ("Compute the loss in chunks", "", {"PART": "2"}),
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("simulated_device")]


def record(folder: Path, name: str, output: str, **more: str) -> int:
    variables = {
        "PYTRACER_OUTPUT": output,
        "SIMULATED_CAPACITY_MB": "2048",
        "DEVICE": "cuda",
        **more,
    }
    env = processes.environment(PYTRACER="1", **variables)
    return processes.run_python("-m", "corpus", name, cwd=folder, env=env).returncode


def ask(command: str) -> Any:
    return json.loads(invoke(*shlex.split(command)).stdout)


def next_command(verdict: str) -> tuple[str, str]:
    """Return the command of the page's table for a verdict, and the key to read."""
    rows = ROW.findall(SKILL.read_text())
    assert [words for words, _, _ in rows] == ["a leak", "fragmented", "any other"]
    for words, command, key in rows:
        if verdict.endswith(words) or words == "any other":
            return command, key
    raise AssertionError(verdict)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if number < 2 else pytest.mark.long)
        for number, name in enumerate(PLANTED)
    ],
)
def test_the_skill_leads_to_the_fix(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice, found, fix = PLANTED[name]
    monkeypatch.chdir(tmp_path)
    # GIVEN a job that runs out of memory
    assert record(tmp_path, name, "out") != 0
    # WHEN the page's questions are asked
    answer = ask("show out --json")["answer"]
    roles = {line["role"] for line in answer["lines"]}
    assert {"why", "lines", "do"} <= roles
    assert any(line["frame"] for line in answer["lines"] if line["role"] == "lines")
    # THEN the answer says what to do, and a closer look what is wrong
    assert answer["verdict"].startswith("OUT OF MEMORY: ")
    assert advice in " ".join(line["text"] for line in answer["lines"] if line["role"] == "do")
    command, key = next_command(answer["verdict"])
    assert found in json.dumps(ask(command)[key], ensure_ascii=False)
    # AND with this change the job passes: these programs end without a snapshot of their end
    assert record(tmp_path, name, "new", **fix) == 0
    assert not [*tmp_path.glob("new/oom_*")]
