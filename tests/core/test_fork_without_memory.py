"""Does a fork succeed in a process that cannot get any more memory?"""

import os
import resource
from pathlib import Path

from pytracer import _core

SLACK_BYTES = 256 * 1024  # room for what Python and libc take in a child


def test_a_child_of_a_process_without_address_space() -> None:
    # GIVEN a process with pytracer that has nearly no address space left
    assert _core.MAX_STACK_DEPTH > 0
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * os.sysconf("SC_PAGE_SIZE") + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limits[1]))
    try:
        # WHEN it forks, THEN the child lives
        child = os.fork()
        if child == 0:
            os._exit(0)
        status = os.waitpid(child, 0)[1]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert status == 0
