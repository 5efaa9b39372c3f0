// Loads the shared libraries that are compiled for the running torch, and connects them to the
// recorder: the allocators' hooks, and the library that reads autograd's state.
#pragma once

#include <string>

#include "hooks/autograd_abi.h"
#include "hooks/hook_abi.h"

namespace pytracer {

// Attaches the hook in `path`, unless its backend is attached already. False: torch has not
// initialised the device yet. The hook calls `report_oom` if torch has no observers for that. The
// library is never unloaded. Any thread, without the GIL. Throws HookError with a message for the
// user.
bool attach_hook(const std::string& path, pytracer_oom_fn report_oom);

// Attaches the library in `path` that reads autograd's state, unless one is attached. The library is
// never unloaded. Any thread, without the GIL. Throws HookError, or Error (no address space).
void attach_autograd(const std::string& path);

// Lets the core tell the threads of autograd by their names (autograd_threads.h), unless a library
// that reads autograd's state is attached, or until one is. Throws Error or std::bad_alloc.
void watch_autograd_threads();

// What the attached library reads on the calling thread. Null: none is attached.
const pytracer_autograd* attached_autograd() noexcept;

}  // namespace pytracer
