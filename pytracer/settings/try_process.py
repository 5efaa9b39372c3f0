"""Let an accelerator's allocator read its settings.

`check_in_new_process` runs `python -m pytracer.settings.try_process CHANGE` with the settings in
the environment. The last line of the output is JSON: `backend` ("cuda", "npu" or null), `refused`
(the allocator's error, or null) and `read`, what is in force instead of what `CHANGE` asks for.
"""

import json
import sys
from typing import Any

from pytracer.backends.devices import present_accelerator
from pytracer.backends.running_torch import torch_module
from pytracer.settings import running
from pytracer.variables import parse_settings


def main(change: str) -> dict[str, Any]:
    """Initialise the accelerator that torch finds, and compare its settings with `change`."""
    backend = present_accelerator()
    answer: dict[str, Any] = {"backend": backend, "refused": None, "read": {}}
    if backend is None:
        return answer
    module = torch_module(backend)
    try:
        module.init()
        if module.get_allocator_backend() == "native":
            answer["read"] = running.unmet_settings(backend, parse_settings(change))
    except (ValueError, IndexError, RuntimeError) as error:
        if isinstance(error, getattr(sys.modules["torch"], "AcceleratorError", ())):
            raise  # an error of the device, not of its settings
        answer["refused"] = str(error)
    return answer


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1])))
