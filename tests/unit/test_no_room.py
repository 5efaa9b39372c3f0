"""A ring that finds no address space: said, and nothing else is harmed."""

from pathlib import Path

from processes import run

CODE = """
import resource
from pytracer import _core
from pytracer.errors import PytracerError

def made(entries):
    return _core.Owner([-1], entries, 32, 2**25, 3)

first = made(100)
first.start()
_core.testing.record(0, 64, 8)
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
for owner in (made(2**28), made(2**28)):
    for attempt in range(2):
        try:
            owner.start()
        except PytracerError as error:
            print(error)
    assert not owner.recording
    assert len(owner.events()) == 0
del owner
_core.testing.record(2, 64, 0)
print(first.events()["address"].tolist())
del first
again = made(100)
again.start()
_core.testing.record(0, 128, 8)
print(again.events()["address"].tolist())
"""


def test_no_address_space_for_a_ring(tmp_path: Path) -> None:
    # GIVEN an owner that records, and little address space
    # WHEN others ask for rings of 16 GiB
    done = run(CODE, cwd=tmp_path)
    # THEN they are told so, each time, and the first, and later ones, record as ever
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [lines[0]] * 4
    assert lines[0].startswith("cannot reserve 17179869184 bytes of address space: ")
    assert lines[4:] == ["[64, 64]", "[128]"]
