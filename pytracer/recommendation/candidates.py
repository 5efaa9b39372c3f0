"""The settings to try: a coarse grid, and the neighbours of a setting."""

from collections.abc import Iterator

from pytracer.variables import format_settings, parse_settings

EXPANDABLE = "expandable_segments"
SPLIT = "max_split_size_mb"
DIVISIONS = "roundup_power2_divisions"
COLLECTION = "garbage_collection_threshold"
SEGMENT = "large_segment_size_mb"
ROUNDING = "max_non_split_rounding_mb"

PLACEMENT = (EXPANDABLE, SPLIT, DIVISIONS, COLLECTION, SEGMENT, ROUNDING)
"""The settings that are searched. All other settings stay as the recording has them."""

Choice = dict[str, str]
"""The values of the settings in `PLACEMENT` that differ from the defaults."""

_SPLITS = (32, 64, 128, 256, 512, 1024)
_DIVISIONS = (2, 4, 8, 16)
_SEGMENTS = (40, 80)


def placement(settings: str) -> Choice:
    """Return the placement settings among all settings, without defaults.

    Raises:
        ConfigError: The settings are malformed.
    """
    found = {key: value for key, value in parse_settings(settings).items() if key in PLACEMENT}
    if found.get(EXPANDABLE) == "False":
        del found[EXPANDABLE]
    return found


def with_choice(settings: str, choice: Choice) -> str:
    """Return the settings with other placement settings, in the form of the variable."""
    items = parse_settings(settings)
    kept = {key: value for key, value in items.items() if key not in PLACEMENT}
    return format_settings(kept | choice)


def name_of(choice: Choice) -> str:
    """Return a choice as text, as in "expandable_segments:True"."""
    return format_settings(choice) or "defaults"


def coarse_grid(has_fraction: bool) -> Iterator[Choice]:
    """Yield the choices of the coarse grid; the defaults come first.

    Args:
        has_fraction: Whether the process has a limit (`set_per_process_memory_fraction`), without
            which `garbage_collection_threshold` has no effect.
    """
    joined = {EXPANDABLE: "True"}
    yield {}
    yield joined
    for divisions in _DIVISIONS:
        yield {DIVISIONS: str(divisions)}
        yield {**joined, DIVISIONS: str(divisions)}
    for split in _SPLITS:
        yield {SPLIT: str(split)}
        yield {SPLIT: str(split), DIVISIONS: "8"}
    for split in _SPLITS[1:4]:
        yield {SPLIT: str(split), ROUNDING: "200"}
        yield {**joined, SPLIT: str(split)}
    for segment in _SEGMENTS:
        yield {SEGMENT: str(segment)}
        yield {**joined, SEGMENT: str(segment)}
    for threshold in ("0.6", "0.8", "0.9") if has_fraction else ():
        yield {COLLECTION: threshold}
        yield {COLLECTION: threshold, SPLIT: "128"}


def neighbours(choice: Choice) -> Iterator[Choice]:
    """Yield the choices next to one: one value finer, or one setting more or less."""
    for key in choice:
        yield {other: value for other, value in choice.items() if other != key}
    for key, least in ((SPLIT, 21), (SEGMENT, 20), (ROUNDING, 20)):
        if key in choice:
            value = int(choice[key])
            for other in (value * 3 // 4, value * 3 // 2):
                yield {**choice, key: str(max(other, least))}
    if DIVISIONS in choice:
        if choice[DIVISIONS].isdecimal():
            value = int(choice[DIVISIONS])
            yield from ({**choice, DIVISIONS: str(other)} for other in (value // 2, value * 2))
    else:
        yield from ({**choice, DIVISIONS: str(other)} for other in _DIVISIONS)
    if SPLIT not in choice:
        yield from ({**choice, SPLIT: str(other)} for other in (96, 384))
    if SEGMENT not in choice:
        yield {**choice, SEGMENT: "30"}
