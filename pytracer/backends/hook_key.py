"""The key in a hook's file name: a hash of everything that the hook is compiled from."""

import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytracer.backends.hook_cache import HookCache, Stamp, cache_name, nearest_folder, stamp

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]', re.MULTILINE)


def hook_key(
    source: Path, roots: Sequence[Path], facts: Mapping[str, bytes], cache: HookCache
) -> str:
    """Return 20 hexadecimal digits that identify what a hook is compiled from.

    The key is a hash of the hook's source, of every header under `roots` that the source includes,
    directly or not, and of `facts`. Install paths do not count, so that a hook built elsewhere for
    the same torch is found.

    Args:
        source: The hook's source, in one of `roots`.
        roots: The folders in which the compiler looks for headers, in order.
        facts: What else decides the ABI, by name.
        cache: The keys that were computed before; gets this one.

    Raises:
        OSError: A header cannot be read.
    """
    parts = [os.fsencode(path) for path in (source, *roots)]
    parts += [b"%s=%s" % (os.fsencode(name), fact) for name, fact in sorted(facts.items())]
    name = cache_name("key", parts)
    if key := cache.get(name):
        return key
    contents, seen = included_files(source, roots)
    digest = hashlib.sha256()
    for part, content in sorted({**facts, **contents}.items()):
        digest.update(b"%s\0%d\0%s" % (os.fsencode(part), len(content), content))
    key = digest.hexdigest()[:20]
    cache.put(name, key, seen)
    return key


def included_files(
    source: Path, roots: Sequence[Path]
) -> tuple[dict[str, bytes], dict[str, Stamp]]:
    """Return all files under `roots` that `source` includes, directly or not.

    Returns:
        The contents of the files, `source` among them, by the path relative to the root; and the
        stamps of the files, and of the folders in which a header was looked up and not found, by
        path. While these stamps are the same, so are the contents.
    """
    contents: dict[str, bytes] = {}
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
        contents[os.path.relpath(path, root)] = content
        for name in map(os.fsdecode, set(_INCLUDE.findall(content))):
            for folder in (os.path.dirname(path), *prefixes):
                if (folder, name) not in tried:
                    tried.add((folder, name))
                    todo.append(os.path.normpath(os.path.join(folder, name)))
    return contents, seen
