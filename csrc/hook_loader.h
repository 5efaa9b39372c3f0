// Loads a hook's shared library and connects it to the recorder.
#pragma once

#include <string>

#include "hook.h"

namespace pytracer {

// Attaches the hook in `path`; a backend that is attached already stays as it is. False: torch has
// not initialised the device yet. `tell_oom` is called where torch has no observers for it. The
// library is never unloaded. Any thread, without the GIL. Throws HookError with a sentence for the
// user.
bool attach_hook(const std::string& path, pytracer_oom_fn tell_oom);

}  // namespace pytracer
