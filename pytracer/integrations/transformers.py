"""Record what the `Trainer` of Hugging Face transformers trains."""

from typing import Any

from pytracer.integrations.packages import needs
from pytracer.integrations.training import RecordingCallback

with needs("transformers", "transformers"):
    from transformers import TrainerCallback


class PytracerCallback(RecordingCallback, TrainerCallback):  # type: ignore[misc]
    """Records each training of a `transformers.Trainer`.

        Trainer(..., callbacks=[PytracerCallback("outputs/profile", phases="auto")])

    A step of the optimizer is a step of the tracer. The end of the training writes the snapshot. If
    the training raises, the snapshot is written when the process ends; the snapshot of an
    out-of-memory is written at once.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to record."""
        self._begin_recording()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End a step."""
        self._end_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop, and write the snapshot."""
        self._end_recording(state.is_world_process_zero)
