"""Programs that are changed: an optimizer with smaller states, a part of a model in each rank."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from pytracer.analysis.answer_words import CATEGORY_WORDS
from pytracer.errors import ConfigError
from pytracer.fitting.alignment import Recorded
from pytracer.fitting.lines import kinds_of
from pytracer.reading.snapshot import Column

Scale = Mapping[str, float]
"""The factor of each category that changes, as in {"optimizer_state": 0.125}."""

_EXAMPLE = "give a category and a factor, such as optimizer_state=0.25, gradient=1/8 or input=0"


def parsed_scale(texts: Sequence[str]) -> dict[str, float]:
    """Return the factors of texts such as "parameter=1/8,gradient=1/8".

    Raises:
        ConfigError: A text has another form.
    """
    found: dict[str, float] = {}
    for part in ",".join(texts).split(",") if texts else []:
        category, _, factor = part.strip().partition("=")
        try:
            found[category] = float(Fraction(factor))
        except (ValueError, ZeroDivisionError, OverflowError):
            raise ConfigError(f'"{part}": {_EXAMPLE}') from None
    return found


def factors_of(base: Recorded, scale: Scale) -> Column:
    """Return the factor of each allocation: float64.

    Raises:
        ConfigError: The recording has no such category, or a factor is negative.
    """
    names, index = kinds_of(base).categories()
    held = {names[i] for i in np.unique(index).tolist()}
    for category, factor in scale.items():
        if not 0 <= factor <= 1000:
            raise ConfigError(f"{category}={factor}: the factor is a number from 0 to 1000")
        if category not in held:
            raise ConfigError(
                f"{base.path} has no blocks of the category {category!r}, but of "
                f"{', '.join(sorted(held))}: {_EXAMPLE}"
            )
    found: Column = np.array([scale.get(name, 1.0) for name in names])[index]
    return found


def scale_notes(scale: Scale) -> Iterator[str]:
    """Yield what an answer for a changed program means."""
    if scale:
        words = {name: CATEGORY_WORDS.get(name, name) for name in scale}
        changes = ", ".join(f"{words[name]} x {factor:.4g}" for name, factor in scale.items())
        yield (
            f"An estimate: {changes}, and all other requests as recorded. What the change requests "
            "besides is not in it, such as the buffers that gather shards."
        )
