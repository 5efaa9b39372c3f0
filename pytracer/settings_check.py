"""Has an accelerator's allocator read its settings: `python -m pytracer.settings_check CHANGE`.

Run by `pytracer.settings.check_in_new_process` with the settings in the environment. The last line
of the output is JSON: `backend` ("cuda", "npu" or null), `refused` (the allocator's error, or null)
and `read`, what is in force instead of what `CHANGE` asks for.
"""

import json
import sys
from typing import Any

from pytracer import devices, settings_access
from pytracer.settings_keys import parsed


def main(change: str) -> dict[str, Any]:
    """Initialises the accelerator that is there."""
    for backend in reversed(devices.built_in()):  # torch_npu beside a CUDA build is what is meant
        if backend == "cpu":
            continue
        module = devices.torch_module(backend)
        answer: dict[str, Any] = {"backend": backend, "refused": None, "read": {}}
        try:
            if not module.is_available():
                continue
            module.init()
            if module.get_allocator_backend() == "native":
                answer["read"] = settings_access.unmet(backend, parsed(change))
        except (ValueError, IndexError, RuntimeError) as error:
            if isinstance(error, getattr(sys.modules["torch"], "AcceleratorError", ())):
                raise  # of the device, not of its settings
            answer["refused"] = str(error)
        return answer
    return {"backend": None, "refused": None, "read": {}}


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1])))
