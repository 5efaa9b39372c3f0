"""The work on one file, which every engine does in the same way."""

from dataclasses import replace

from pytracer.errors import PytracerError
from pytracer.fleet.sources import Source, read_content
from pytracer.fleet.summary import failed, summarize
from pytracer.fleet.tables import Encoded, encode
from pytracer.reading.reader import load


def collect_file(source: Source) -> Encoded:
    """Read a file and return its rows. A file that cannot be read gives a row with the reason."""
    try:
        if source.url is None:
            snapshot = load(source.path)
        else:
            snapshot = load(read_content(source), source.name)
        return encode(summarize(snapshot, source))
    except PytracerError as error:
        is_content = error.__cause__ is None or getattr(error.__cause__, "errno", 0) is None
        return unreadable(source, str(error), is_content)
    except Exception as error:  # one file must not end the collection
        return unreadable(source, f"{source.name} was not understood: {error!r}", True)


def unreadable(source: Source, error: str, is_content: bool) -> Encoded:
    """Return the row of a file that cannot be read.

    Args:
        source: The file.
        error: Why it cannot be read.
        is_content: Whether the reason is the file's content. If not, the next collection tries the
            file again.
    """
    if not is_content:
        source = replace(source, stamp="")
    return encode(failed(source, error))
