"""Which phases have no file, and who is told?"""

import asyncio
import re
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from phase_files import of_phase, read, trace
from step_files import BYTE

from pytracer import Tracer, _core, annotate
from pytracer.tracing import step_recording

pytestmark = pytest.mark.usefixtures("no_collector")


def test_a_phase_from_before_the_step_has_no_file(tmp_path: Path) -> None:
    with Tracer(tmp_path, device="cpu", steps=[2], discrete=True) as tracer, annotate("early"):
        tracer.step()
        torch.empty(100, dtype=BYTE)
        tracer.step()
    assert {*read(tmp_path)} == {"step2"}


def test_functions_whose_bodies_alternate_have_no_files(tmp_path: Path) -> None:
    # GIVEN coroutines and generators of one phase, several of them active on one thread
    @annotate("turns")
    async def work() -> None:
        for _ in range(3):
            torch.empty(100, dtype=BYTE)
            await asyncio.sleep(0)

    @annotate("turns")
    def generate() -> Generator[int, None, None]:
        for number in range(3):
            torch.empty(100, dtype=BYTE)
            yield number

    async def main() -> None:
        await asyncio.gather(work(), work())
        with annotate("all"):
            await asyncio.gather(work(), work())

    # WHEN they run, THEN their events have the phase, and a `with` statement around them has the
    # file
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=["turns", "all"]) as tracer:
        asyncio.run(main())
        assert list(zip(generate(), generate(), strict=True)) == [(0, 0), (1, 1), (2, 2)]
        tracer.step()
    files = read(tmp_path)
    assert {*files} == {"step1", "step1/all"}
    assert len(of_phase(trace(files["step1"]), "turns")) == 5 * 18
    assert len(of_phase(trace(files["step1/all"]), "turns")) == 5 * 6


def test_an_upload_that_is_a_phase_has_no_file(tmp_path: Path) -> None:
    # GIVEN an on_snapshot function that enters a phase, in which it allocates
    uploaded: list[str] = []

    @annotate("upload")
    def upload(path: str) -> None:
        torch.empty(10, dtype=BYTE)
        uploaded.append(Path(path).parent.name)

    # WHEN a phase and a step end
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True, on_snapshot=upload) as tracer:
        with annotate("rollout"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
    # THEN each of their files is uploaded, and the uploads have no files
    assert uploaded == ["rollout", "step1"]
    assert {*read(tmp_path)} == {"step1", "step1/rollout"}


def test_a_rank_that_is_known_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a process that learns during its first step that it is rank 1, which writes no files
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with annotate("rollout"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
    # THEN it writes neither file
    assert read(tmp_path) == {}


def test_a_phase_that_cannot_be_recorded_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN no memory for another session
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:

        def no_room() -> _core.Session:
            raise MemoryError

        monkeypatch.setattr(tracer._recording, "new_session", no_room)
        # WHEN phases occur, THEN they run, and the failures are logged and counted
        for _ in range(2):
            with annotate("rollout"):
                torch.empty(10)
        tracer.step()
        assert tracer.stats()["failures"] == 2
    assert {*read(tmp_path)} == {"step1"}
    assert re.fullmatch(r"the phase rollout gets no file: .*", caplog.messages[0])
    assert len(caplog.messages) == 1


def test_no_more_files_than_a_step_may_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recording, "MAX_OCCURRENCES", 10)
    with Tracer(tmp_path, device="cpu", steps=[1, 2], discrete=["load"]) as tracer:
        for _ in range(13):
            with annotate("load"):
                torch.empty(100, dtype=BYTE)
        tracer.step()
        with annotate("load"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
        assert tracer.stats()["failures"] == 3
    assert len(read(tmp_path / "step1")) == 10 + 1
    assert len(read(tmp_path / "step2")) == 1 + 1
    assert caplog.text.count("discrete: more than 10 phases occurred in a step") == 1


def test_a_phase_that_never_begins_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=["rolout"]) as tracer:
        with annotate("rollout"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
    assert "discrete=('rolout',) wrote no file: no such phase began in" in caplog.text
