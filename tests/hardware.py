"""Try pytracer on a real GPU: the accelerator's tests, quick benchmarks, and 20 programs.

    make hardware                               # installs into .venv-hardware, needs no network
    python tests/hardware.py --device cuda      # with the installed pytracer
    tests/devices/simulate cuda PYTHON tests/hardware.py --device cuda --short

Each part prints as it goes, has a time limit, and leaves the other parts running if it fails; all
end within 25 minutes, the less important ones last. The files of tests run one after the other,
and the one that fills the device alone. The results are `hardware.json` and `hardware.md` in the
folder of `--output`. The exit status is 1 if a part failed. `--short` tries the tests and two
programs, and no benchmark, which takes minutes. `--programs` adds a folder of programs, such as
reports of users; they run in a folder that has a folder `out`.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, HELPERS = ROOT / "examples", ROOT / "tests" / "helpers"
SHOWN_LINES = 60
TOTAL_SECONDS = 24 * 60
END_SECONDS = 20  # for a part to end, after it was asked to
ANSWER_SECONDS = 60
TEST_GROUPS = 4  # a crash or a test without an end costs only the rest of its group


class Part(NamedTuple):
    """A part of the trial."""

    name: str  # its name in the results
    arguments: list[str]  # Python's arguments
    seconds: float  # its time limit
    # A question to pytracer about the snapshots that it leaves; empty: none.
    answer: tuple[str, ...] = ()
    # What the first line of the answer has to say of a program that runs out of memory; None: the
    # program has to succeed.
    says: str | None = None


def parts(device: str, short: bool, report: Path, extra: Path | None) -> list[Part]:
    """Return the parts, in the order of their use."""
    tests = ["-m", "pytest", "-v", f"--device={device}", f"--junitxml={report}", "--timeout=240"]
    names = ["test_attach", "test_parity", "test_cuts", "test_snapshot", "test_oom"]
    folder = ROOT / "tests" / "accelerator"
    first = [str(folder / f"{name}.py") for name in names]
    filling = str(folder / "test_saved_tensors.py")  # other tests would find no memory meanwhile
    rest = sorted({*map(str, folder.glob("test_*.py"))} - {*first, filling})
    bench = [str(ROOT / "bench"), "--device", device, "--quick"]
    leaks = ["list_of_activations", "graph_of_losses", "cache_in_a_module", "replay_buffer"]
    run = ["-m", "pytracer", "run", "--output"]
    programs = [
        *(
            Part(
                name,
                [*run, name, "-m", "corpus", name],
                60,
                ("show", "--leaks"),
            )
            for name in leaks
        ),
        Part(
            "fsdp_gathers 3b",
            [*run, "fsdp", str(EXAMPLES / "fsdp_gathers.py"), "3b"],
            90,
            ("show",),
            "fragmented",
        ),
        Part(
            "rlhf_phases",
            [str(EXAMPLES / "rlhf_phases.py"), "--device", device, "--output", "rlhf"],
            90,
            ("show",),
        ),
        Part("memory_by_module", [str(EXAMPLES / "memory_by_module.py")], 60, ("show",)),
        Part("demo", ["-m", "pytracer", "demo"], 60),
        Part("plain_training", [*run, "plain", str(EXAMPLES / "plain_training.py")], 60, ("show",)),
        Part("train_transformer", [str(EXAMPLES / "train_transformer.py")], 60, ("show",)),
    ]
    if device == "cuda" and not short and importlib.util.find_spec("transformers"):
        programs += of_a_whole_device()
    if extra is not None:
        programs += [Part(path.stem, [str(path)], 60) for path in sorted(extra.glob("*.py"))]
    if short:
        return [
            Part("tests", [*tests, str(folder / "test_gauges.py")], 180),
            programs[0],
            programs[6],
        ]
    figures = [
        Part(f"benchmark {name}", [*bench, name], seconds)
        for name, seconds in (("per_event", 150), ("per_step", 150), ("dump", 240), ("startup", 60))
    ]
    return [
        Part("doctor", ["-m", "pytracer", "doctor"], 120),
        Part("tests of the hooks", [*tests, *first], 300),
        *figures,
        *programs,
        Part("tests that fill the device", [*tests, filling], 120),
        *(
            Part(f"other tests, group {group + 1}", [*tests, *rest[group::TEST_GROUPS]], 150)
            for group in range(TEST_GROUPS)
        ),
        Part("benchmark threads", [*bench, "threads"], 60),
    ]


def of_a_whole_device() -> Iterator[Part]:
    """Yield the programs that run out of the memory of a real GPU."""
    import hardware_programs  # of this folder; it needs transformers

    script = hardware_programs.__file__
    for program, words in hardware_programs.FIRST_WORDS.items():
        name = program.__name__
        command = ["-m", "pytracer", "run", "--output", name, script, name]
        yield Part(name, command, 60, ("show",), words)


def result_of(part: Part, seconds: float, folder: Path, report: Path) -> dict[str, Any]:
    """Run a part for some seconds at most, and return what is known of it, with its result."""
    print(f"\n=== {part.name}", flush=True)
    if seconds < 1:
        text = "not run: no time was left"
        print(text, flush=True)
        no_run = {"part": part.name, "status": None, "seconds": 0.0, "is_late": True}
        return {**no_run, "says": part.says, "result": text, "output": [text]}
    result = run(part._replace(seconds=seconds), folder)
    if "tests" in part.name:
        result |= counted(report)
    elif part.answer:
        result["result"] = answer(part.answer, folder)
        print(result["result"], flush=True)
    return result


def run(part: Part, folder: Path) -> dict[str, Any]:
    """Run a part in a folder, copy its output to ours, and return what is known of it."""
    begin = time.monotonic()
    (folder / "out").mkdir(parents=True)
    paths = [os.environ.get("PYTHONPATH", ""), str(HELPERS), str(ROOT / "tests")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, *part.arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    is_late = threading.Event()

    def interrupt() -> None:
        is_late.set()
        end_of_group(process.pid, signal.SIGINT)
        time.sleep(END_SECONDS)
        end_of_group(process.pid, signal.SIGKILL)

    limit = threading.Timer(part.seconds, interrupt)
    limit.daemon = True
    limit.start()
    lines = []
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    status = process.wait()
    limit.cancel()
    return {
        "part": part.name,
        "status": status,
        "seconds": round(time.monotonic() - begin, 1),
        "is_late": is_late.is_set(),
        "says": part.says,
        "output": lines[-SHOWN_LINES:],
    }


def end_of_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a part and to the processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def counted(report: Path) -> dict[str, Any]:
    """Return how many tests passed, failed and were skipped, and the names of the failed ones."""
    if not report.exists():
        return {"result": "the tests wrote no report"}
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(failed) - len(skipped)
    return {
        "result": f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped",
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in failed],
    }


def answer(question: tuple[str, ...], folder: Path) -> str:
    """Return the first line of pytracer's answer about the last out-of-memory in a folder.

    Without one, it is that about the first snapshot.
    """
    files = sorted(folder.rglob("*.pickle"))
    if not files:
        return "no snapshot"
    last_oom = [path for path in files if "oom" in path.parent.name][-1:]
    command = [sys.executable, "-m", "pytracer", *question, str((last_oom or files)[0])]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {ANSWER_SECONDS} s"
    return next(iter((done.stdout or done.stderr).splitlines()), "no answer")


def table(results: list[dict[str, Any]], machine: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [f"{name}: {value}  " for name, value in machine.items()]
    lines += ["", "| part | status | seconds | result |", "|---|---|---|---|"]
    for each in results:
        status = "late" if each["is_late"] else each["status"]
        result = each.get("result", "").replace("|", "\\|")
        lines.append(f"| {each['part']} | {status} | {each['seconds']} | {result} |")
    for each in results:
        for name in each.get("failed", []):
            lines.append(f"\nFailed: `{name}`")
        if each["part"].startswith("benchmark") or has_failed(each):
            lines += ["", f"## {each['part']}", "", "```", *each["output"], "```"]
    return "\n".join(lines) + "\n"


def has_failed(result: dict[str, Any]) -> bool:
    """Return whether a part failed. A program that shall run out of memory may end with 1."""
    if result["says"] is not None:
        return result["is_late"] or result["says"] not in result["result"]
    return bool(result["is_late"] or result["status"] != 0)


def describe(device: str) -> dict[str, Any]:
    """Return the machine and the versions."""
    import torch

    import pytracer

    module = getattr(torch, device)
    return {
        "device": module.get_device_name(0) if module.is_available() else "none",
        "torch": torch.__version__,
        "pytracer": pytracer.__version__,
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "npu"), default="cuda")
    parser.add_argument("--short", action="store_true", help="some tests and two programs")
    parser.add_argument("--programs", type=Path, help="a folder of further programs")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    os.environ["DEVICE"] = options.device  # of the programs of tests/corpus
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    extra = options.programs.resolve() if options.programs else None
    results: list[dict[str, Any]] = []
    begin = time.monotonic()
    machine = describe(options.device)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        report = Path(place) / "tests.xml"
        for number, part in enumerate(parts(options.device, options.short, report, extra)):
            report.unlink(missing_ok=True)
            folder = Path(place) / str(number)
            left = begin + TOTAL_SECONDS - time.monotonic()
            results.append(result_of(part, min(part.seconds, left), folder, report))
            # After each part, because the machine may be taken away.
            content = json.dumps({**machine, "parts": results}, indent=2)
            (output / "hardware.json").write_text(content + "\n")
            (output / "hardware.md").write_text(table(results, machine))
    failed = [each["part"] for each in results if has_failed(each)]
    print(f"\n{len(results) - len(failed)} of {len(results)} parts succeeded; {output}/hardware.md")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
