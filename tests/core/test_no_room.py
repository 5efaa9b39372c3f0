"""Check that a ring that gets no address space raises an error and harms no other session."""

from pathlib import Path

from processes import run

CODE = """
import resource
from pytracer import _core
from pytracer.errors import PytracerError

def create_session(entries):
    return _core.Session([-1], entries, 32, 2**25, 3)

first = create_session(100)
first.start()
_core.testing.record(0, 64, 8)
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
for session in (create_session(2**28), create_session(2**28)):
    for attempt in range(2):
        try:
            session.start()
        except PytracerError as error:
            print(error)
    assert not session.recording
    assert len(session.events()) == 0
del session
_core.testing.record(2, 64, 0)
print(first.events()["address"].tolist())
del first
later = create_session(100)
later.start()
_core.testing.record(0, 128, 8)
print(later.events()["address"].tolist())
"""


def test_no_address_space_for_a_ring(tmp_path: Path) -> None:
    # GIVEN a session that records, and little address space
    # WHEN other sessions ask for rings of 12 GiB
    done = run(CODE, cwd=tmp_path)
    # THEN each start raises an error, and earlier and later sessions still record
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [lines[0]] * 4
    assert lines[0].startswith("cannot reserve 12884901888 bytes of address space: ")
    assert lines[4:] == ["[64, 64]", "[128]"]
