// Loads a hook's shared library and connects it to the recorder.
#pragma once

#include <string>

#include "hooks/hook_abi.h"

namespace pytracer {

// Attaches the hook in `path`, unless its backend is attached already. False: torch has not
// initialised the device yet. The hook calls `report_oom` if torch has no observers for that. The
// library is never unloaded. Any thread, without the GIL. Throws HookError with a message for the
// user.
bool attach_hook(const std::string& path, pytracer_oom_fn report_oom);

}  // namespace pytracer
