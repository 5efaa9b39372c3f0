"""Record what the `Trainer` of Lightning fits."""

import importlib
import importlib.util
import sys
from typing import Any

from pytracer.integrations.packages import MissingPackageError
from pytracer.integrations.training import RecordingCallback

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    """Return the base of callbacks, of the package that the program has imported, or else has."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return importlib.import_module(name).Callback
    raise MissingPackageError("lightning", "lightning")


class PytracerCallback(RecordingCallback, _callback()):  # type: ignore[misc]
    """Records each `fit` of a Lightning `Trainer`.

        Trainer(..., callbacks=[PytracerCallback("outputs/profile", phases="auto")])

    A batch in which an optimizer has stepped ends a step of the tracer. The end of `fit` writes the
    snapshot, also if `fit` raises.
    """

    _optimizer_steps = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record."""
        self._optimizer_steps = trainer.global_step
        self._begin_recording()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End a step, if an optimizer has stepped: gradients may be accumulated."""
        if trainer.global_step != self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            self._end_step()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop, and write the snapshot."""
        self._end_recording(trainer.is_global_zero)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop, and write the snapshot."""
        self._end_recording(trainer.is_global_zero)
