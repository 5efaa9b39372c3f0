"""Can files be read while the interpreter exits?"""

import gzip
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "golden" / "snapshot-1.8-cpu.pickle"

PROGRAM = """
import atexit, sys, threading, time

def last_look():
    print(len(load(sys.argv[1]).traces), len(load(sys.argv[2]).traces), flush=True)
    time.sleep(0.05)

atexit.register(last_look)  # before pytracer is imported, so it is called after pytracer's callback
from pytracer.reading import load

def look():
    while True:
        load(sys.argv[1])
        load(sys.argv[2])

for _ in range(2):
    threading.Thread(target=look, daemon=True).start()
time.sleep(0.1)
"""


def test_threads_and_callbacks_read_while_the_interpreter_exits(tmp_path: Path) -> None:
    # GIVEN daemon threads that read files, one of them by Python code, and a callback at exit
    compressed = tmp_path / "x.pickle.gz"
    compressed.write_bytes(gzip.compress(FILE.read_bytes()))
    command = [sys.executable, "-c", PROGRAM, str(FILE), str(compressed)]
    for _ in range(3):
        # WHEN the process ends
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        # THEN it ends well, and the callback has read the files
        assert (done.returncode, done.stderr) == (0, "")
        first, second = done.stdout.split()
        assert first == second
