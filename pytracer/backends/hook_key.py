"""The key of a hook: a hash of what decides its ABI.

That is the release of torch or torch_npu, the allocator's headers that the hook names, and our own
sources. A release alone would not do, because vendors patch headers. The headers that those include
in turn are not read: there are thousands of them. Paths do not count, so that a hook that was built
elsewhere for the same torch is found.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]', re.MULTILINE)


def hook_key(source: Path, roots: Sequence[Path], facts: Mapping[str, str]) -> str:
    """Return 20 hexadecimal digits that identify a hook.

    Args:
        source: The hook's source, next to pytracer's own headers.
        roots: The folders in which the compiler looks for headers, in order.
        facts: What else decides the ABI, by name.

    Raises:
        OSError: A file cannot be read.
    """
    own = [source, *sorted(source.parent.rglob("*.h"))]
    parts = [f"{name}={fact}".encode() for name, fact in sorted(facts.items())]
    named: set[bytes] = set()
    for path in own:
        content = path.read_bytes()
        named.update(_INCLUDE.findall(content))
        parts += [os.fsencode(path.relative_to(source.parent)), content]
    for name in sorted(named):
        candidates = (root / os.fsdecode(name) for root in roots)
        found = next((path for path in candidates if path.is_file()), None)
        if found is not None:  # the others are the compiler's own
            parts += [name, found.read_bytes()]
    whole = b"".join(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(whole).hexdigest()[:20]
