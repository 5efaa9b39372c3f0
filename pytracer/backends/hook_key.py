"""The key of a hook: a hash of headers and of what else decides the ABI.

The key of a hook that is compiled here is in its file name. It covers every header that the
compiler may read, because it is needed before the compilation. The key of a ready hook covers the
headers that the compiler did read, so that the hook serves builds of torch that differ in others.
"""

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pytracer.backends.hook_cache import NO_KEY, HookCache, Stamp, nearest_folder, stamp

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]', re.MULTILINE)


def headers_key(
    headers: Iterable[str], facts: Mapping[str, bytes], digest: Callable[[str], bytes | None]
) -> str | None:
    """Return 20 hexadecimal digits that identify headers and facts; None: a header is missing.

    Args:
        headers: The paths of the headers.
        facts: What else decides the ABI, by name.
        digest: Returns the hash of a header's content, or None if there is no such header.
    """
    whole = hashlib.sha256()
    for name, fact in sorted(facts.items()):
        whole.update(b"%s=%s\0" % (name.encode(), fact))
    for header in sorted(headers):
        content = digest(header)
        if content is None:
            return None
        whole.update(b"%s\0%s" % (os.fsencode(header), content))
    return whole.hexdigest()[:20]


def hook_key(
    source: Path, roots: Sequence[Path], facts: Mapping[str, bytes], cache: HookCache
) -> str:
    """Return the key of a hook that is compiled here, from all headers that it may read.

    Install paths do not count, so that a hook built elsewhere for the same torch is found.

    Args:
        source: The hook's source, in one of `roots`.
        roots: The folders in which the compiler looks for headers, in order.
        facts: What else decides the ABI, by name.
        cache: The keys that were computed before; gets this one.

    Raises:
        OSError: A header cannot be read.
    """

    def compute() -> tuple[str, dict[str, Stamp]]:
        digests, seen = included_files(source, roots)
        return headers_key(digests, facts, digests.get) or NO_KEY, seen

    return cache.key("key", [os.fsencode(source)], roots, facts, compute)


def included_files(
    source: Path, roots: Sequence[Path]
) -> tuple[dict[str, bytes], dict[str, Stamp]]:
    """Return all files under `roots` that `source` includes, directly or not.

    Returns:
        The hashes of the files, `source` among them, by the path relative to the root; and the
        stamps of the files, and of the folders in which a header was looked up and not found, by
        path. While these stamps are the same, so are the contents.
    """
    digests: dict[str, bytes] = {}
    seen: dict[str, Stamp] = {}
    # torch_npu's headers name 200,000 files, most of them many times. Each is looked up once.
    prefixes = [str(root) for root in roots]
    tried: set[tuple[str, str]] = set()
    done: set[str] = set()
    todo = [str(source)]
    folder_of = functools.cache(nearest_folder)
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        root = next((root for root in prefixes if path.startswith(f"{root}{os.sep}")), None)
        if root is None:
            continue
        if not os.path.isfile(path):
            folder = folder_of(os.path.dirname(path))
            seen.setdefault(folder, stamp(folder))
            continue
        seen[path] = stamp(path)  # before its content is read, which may then be newer
        content = Path(path).read_bytes()
        digests[os.path.relpath(path, root)] = hashlib.sha256(content).digest()
        for name in map(os.fsdecode, set(_INCLUDE.findall(content))):
            for folder in (os.path.dirname(path), *prefixes):
                if (folder, name) not in tried:
                    tried.add((folder, name))
                    todo.append(os.path.normpath(os.path.join(folder, name)))
    return digests, seen
