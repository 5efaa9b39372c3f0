"""Tracers that keep some stacks only, as those that `patch_torch` starts for torch's callers."""

from pytracer import Tracer


def with_context(tracer: Tracer, context: str | None) -> Tracer:
    """Have a tracer keep the stacks of a `context` of torch's recorder; return the tracer."""
    tracer._recording.change(tracer._recording.options, context)
    return tracer
