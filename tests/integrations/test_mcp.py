"""Test the server for agents with the SDK's own client, on recordings of known answers."""

import asyncio
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import processes
import tools
from leaking_programs import recorded

MIB = 2**20
LOG = ("/home/me/train.py", "log", 30)


async def ask(folders: list[Path], calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Start the server in a process of its own; return the results of calls."""
    import mcp

    arguments = ["-m", "pytracer.integrations.mcp", *map(str, folders)]
    started = mcp.StdioServerParameters(
        command=sys.executable, args=arguments, env=processes.environment(), cwd=folders[0]
    )
    async with mcp.Client(started) as client:
        tools = await client.list_tools()
        assert {tool.name for tool in tools.tools} == {"show", "diff", "recommend", "fit"}
        return [await client.call_tool(name, arguments) for name, arguments in calls]


def test_an_agent_gets_the_answers(tmp_path: Path) -> None:
    tools.packages("mcp")
    # GIVEN a leak, a run without one, a file that would run code, and a file elsewhere
    folder, elsewhere = tmp_path / "runs", tmp_path / "elsewhere.pickle"
    folder.mkdir()
    fine = recorded(lambda *_: None, steps=30).write(folder / "fine.pickle")
    leak = recorded(lambda program, _: program.alloc(MIB, LOG), steps=30).write(
        folder / "leak.pickle"
    )
    elsewhere.write_bytes(fine.read_bytes())
    (folder / "link.pickle").symlink_to(elsewhere)
    evil = folder / "evil.pickle"
    evil.write_bytes(pickle.dumps(_Evil(str(tmp_path / "ran"))))
    # WHEN a client asks
    calls = [
        ("show", {"path": str(leak)}),
        ("show", {"path": str(fine)}),
        ("show", {"path": str(leak), "leaks": True}),
        ("show", {"path": str(leak), "by": "line"}),
        ("diff", {"old": str(fine), "new": str(leak)}),
        ("fit", {"recordings": [f"{fine}@batch=1", f"{leak}@batch=x"], "at": "batch=4"}),
        ("show", {"path": str(evil)}),
        ("show", {"path": str(elsewhere)}),
        ("show", {"path": str(folder / "link.pickle")}),
        ("show", {"path": str(leak), "by": "--all"}),
    ]
    results = asyncio.run(ask([folder], calls))
    texts = [result.content[0].text for result in results]
    # THEN it has the answers of the commands
    assert texts[0].startswith("LEAK: 1 MiB a step")
    assert texts[1].startswith("NO PROBLEM FOUND")
    assert "Leak: 1 MiB a step since step 1" in texts[2]
    assert "train.py:30" in texts[3]
    assert "train.py:30" in texts[4]
    # AND errors say what is wrong, nothing was run, and files elsewhere are not read
    assert [result.is_error for result in results] == [False] * 5 + [True] * 5
    assert "batch=x" in texts[5]
    assert not (tmp_path / "ran").exists()
    for text in texts[7:9]:
        assert f"is not below {folder}" in text
    assert "Invalid value for '--by'" in texts[9]


def test_an_agent_stays_in_the_folder(tmp_path: Path) -> None:
    # GIVEN a folder with a recording, a link to one elsewhere, links to folders, and a pipe
    folder, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    (folder / "linked").mkdir(parents=True)
    (folder / "piped").mkdir()
    elsewhere.mkdir()
    fine = recorded(lambda *_: None, steps=30).write(folder / "fine.pickle")
    secret = recorded(lambda program, _: program.alloc(MIB, LOG), steps=30)
    (folder / "linked" / "a.pickle").symlink_to(secret.write(elsewhere / "secret.pickle"))
    (folder / "linked" / "b").symlink_to(elsewhere)
    os.mkfifo(folder / "piped" / "a.pickle")
    # WHEN a client asks for what is not there, or for what is no path
    paths = ["linked", "linked/b", "piped", "piped/a.pickle", "x\0y", "x" * 100_000, "y/" * 4000]
    calls = [("show", {"path": str(folder / path)}) for path in paths]
    calls.append(("show", {"path": str(fine), "by": "\0"}))
    calls.append(("show", {"path": str(fine), "by": "x" * 200_000}))
    results = asyncio.run(ask([folder], calls))
    # THEN nothing elsewhere is read, nothing waits, and each error says briefly what is wrong
    texts = [result.content[0].text for result in results]
    assert [result.is_error for result in results] == [True] * len(calls), texts
    assert [text for text in texts if not 0 < len(text) < 1200] == []
    assert [text for text in texts if "LEAK" in text or "train.py" in text] == []
    assert "not a regular file" in texts[3]


class _Evil:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (self._path, "w")


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    tools.packages("mcp")
    for folders, error in (([], "name at least one folder"), ([tmp_path / "x"], "is not a folder")):
        done = processes.run_python("-m", "pytracer.integrations.mcp", *folders, cwd=tmp_path)
        assert done.returncode == 1
        assert error in done.stderr
        assert "Traceback" not in done.stderr
