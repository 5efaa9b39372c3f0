#include "hook_loader.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <set>

#include "error.h"
#include "recorder.h"

namespace pytracer {

namespace {

std::string last_dl_error() {
  const char* error = dlerror();
  return error != nullptr ? error : "unknown error";
}

}  // namespace

bool attach_hook(const std::string& path, pytracer_oom_fn tell_oom) {
  static std::mutex mutex;
  static std::set<std::string> attached;
  std::lock_guard lock(mutex);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw HookError("cannot load the hook " + path + ": " + last_dl_error());
  const auto entry =
      reinterpret_cast<pytracer_hook_entry>(dlsym(library, PYTRACER_HOOK_SYMBOL));
  if (entry == nullptr) {
    throw HookError(path + " is not a pytracer hook: " + last_dl_error());
  }
  const pytracer_hook* hook = entry();
  if (hook->abi != PYTRACER_HOOK_ABI) {
    throw HookError("the hook " + path + " was built for another pytracer (interface " +
                    std::to_string(hook->abi) + ", this one has " +
                    std::to_string(PYTRACER_HOOK_ABI) + "): delete it");
  }
  if (attached.count(hook->backend) != 0) return true;
  const bool cpu = std::strcmp(hook->backend, "cpu") == 0;
  char message[512] = "";
  Recorder& recorder = Recorder::instance();
  if (hook->observe_oom != nullptr) hook->observe_oom(tell_oom);
  const int32_t result =
      hook->attach(&Recorder::record, recorder.enabled_flag(cpu), message, sizeof(message));
  if (result == PYTRACER_NOT_READY) return false;
  if (result != PYTRACER_DONE) {
    throw HookError("the " + std::string(hook->backend) + " hook cannot be attached: " + message);
  }
  if (!cpu) recorder.set_accelerator(*hook);
  attached.insert(hook->backend);
  return true;
}

}  // namespace pytracer
