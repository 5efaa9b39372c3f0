#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

#include "support/error.h"
#include "record/recorder.h"
#include "session/registry.h"

namespace pytracer {

namespace {

std::mutex g_mutex;  // guards all below; the next is also read without it
std::atomic<const pytracer_autograd*> g_autograd{nullptr};
const pytracer_hook* g_attached[] = {nullptr, nullptr, nullptr};  // CPU, accelerator, host

// A thread that held the mutex at the fork does not exist in the child, so the child makes it anew.
const int g_at_fork = pthread_atfork(nullptr, nullptr, [] { new (&g_mutex) std::mutex; });

std::string last_dl_error() {
  const char* error = dlerror();
  return error != nullptr ? error : "unknown error";
}

// Loads a library and returns what its entry returns, a table that begins with the number of its
// interface. Under g_mutex.
template <class Entry>
auto load(const std::string& path, const char* symbol, uint32_t abi) {
  if (g_at_fork != 0) throw HookError("out of memory");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw HookError("cannot load the hook " + path + ": " + last_dl_error());
  const auto entry = reinterpret_cast<Entry>(dlsym(library, symbol));
  if (entry == nullptr) throw HookError(path + " is not a pytracer hook: " + last_dl_error());
  const auto* table = entry();
  if (table->abi != abi) {
    throw HookError("the hook " + path + " was built for another pytracer (interface " +
                    std::to_string(table->abi) + ", this one has " + std::to_string(abi) +
                    "): delete it");
  }
  return table;
}

}  // namespace

bool attach_hook(const std::string& path, pytracer_oom_fn report_oom) {
  std::lock_guard lock(g_mutex);
  const pytracer_hook* hook = load<pytracer_hook_entry>(path, PYTRACER_HOOK_SYMBOL, PYTRACER_HOOK_ABI);
  const bool cpu = std::strcmp(hook->backend, "cpu") == 0;
  const bool host = std::strcmp(hook->backend, "host") == 0;
  const pytracer_hook*& attached = g_attached[cpu ? 0 : host ? 2 : 1];
  if (attached != nullptr && std::strcmp(attached->backend, hook->backend) == 0) return true;
  char message[512] = "";
  if (hook->observe_oom != nullptr) hook->observe_oom(report_oom);
  const uint32_t* enabled = Recorder::instance().enabled_flag(cpu);
  const int32_t result = hook->attach(&Recorder::record, enabled, message, sizeof(message));
  if (result == PYTRACER_NOT_READY) return false;
  if (result != PYTRACER_DONE) {
    throw HookError("the " + std::string(hook->backend) + " hook cannot be attached: " + message);
  }
  if (!cpu) Registry::instance().set_hook(*hook, host);
  attached = hook;
  return true;
}

void attach_autograd(const std::string& path) {
  std::lock_guard lock(g_mutex);
  const pytracer_autograd* autograd =
      load<pytracer_autograd_entry>(path, PYTRACER_AUTOGRAD_SYMBOL, PYTRACER_AUTOGRAD_ABI);
  if (attached_autograd() != nullptr) return;
  Registry::instance().set_autograd(*autograd);
  g_autograd.store(autograd, std::memory_order_release);
}

void watch_autograd_threads() {
  std::lock_guard lock(g_mutex);
  if (attached_autograd() == nullptr) Registry::instance().set_autograd(autograd_threads);
}

const pytracer_autograd* attached_autograd() noexcept {
  return g_autograd.load(std::memory_order_acquire);
}

}  // namespace pytracer
