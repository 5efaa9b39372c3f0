// The workspaces that torch keeps for cuBLAS and cuBLASLt: one for each handle and stream, from the
// caching allocator. torch lists them in two maps.
//
// 1. The hook is linked with c10 alone, so torch's functions are looked up when it is attached. If
//    torch has no such functions, there are no workspaces here, and all else works.
// 2. A map is read under torch's own lock, which is tried and never waited for: its holder may wait
//    for the GIL. Before torch 2.10 the maps have no lock, so they are not read.
// 3. Reading allocates nothing, and makes no handle and no workspace.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <type_traits>

#include "hook_abi.h"
#include "trace_entry.h"

// pytracer/backends/hook_compile.py defines this for a torch whose header does not compile here.
#ifndef PYTRACER_NO_WORKSPACES
#include <ATen/cuda/CUDAContextLight.h>
#endif

// Overloads that lose against torch's functions, for releases that do not declare them.
namespace at::cuda {
template <class Nothing = void>
Nothing cublas_handle_stream_to_workspace();
template <class Nothing = void>
Nothing cublaslt_handle_stream_to_workspace();
}  // namespace at::cuda

namespace {

PYTRACER_FIELD(mutex);

// One of the maps. `Result` is what torch's function returns.
template <class Result>
class WorkspaceMap {
 public:
  // Under the lock of attach().
  void find(void* library, const char* function) noexcept {
    if constexpr (kHasLock) function_ = reinterpret_cast<Result (*)()>(dlsym(library, function));
  }

  // Appends the workspaces to `found`, which has `count` of them and room for `room`. Returns how
  // many there are now; -1: another thread changes the map.
  int64_t append(bool is_lt, pytracer_workspace* found, int64_t count,
                 int64_t room) const noexcept {
    if constexpr (kHasLock) {
      if (function_ == nullptr || count < 0) return count;
      auto& workspaces = function_();
      const std::shared_lock lock(workspaces.mutex, std::try_to_lock);
      if (!lock.owns_lock()) return -1;
      for (const auto& [handle_and_stream, entry] : workspaces.map) {
        const c10::DataPtr& data = data_of(entry);
        if (data.get() == nullptr) continue;  // of 0 bytes
        if (count < room) {
          found[count] = {reinterpret_cast<uint64_t>(data.get()),
                          static_cast<int16_t>(data.device().index()), is_lt};
        }
        ++count;
      }
    }
    return count;
  }

 private:
  // False too if torch has no such function.
  static constexpr bool kHasLock = has_mutex<std::remove_reference_t<Result>>::value;

  template <class Entry>  // since torch 2.13 a pair: the workspace and its size
  static const c10::DataPtr& data_of(const Entry& entry) noexcept {
    if constexpr (std::is_same_v<Entry, c10::DataPtr>) {
      return entry;
    } else {
      return entry.first;
    }
  }

  Result (*function_)() = nullptr;  // null: it was not found
};

WorkspaceMap<decltype(at::cuda::cublas_handle_stream_to_workspace())> g_cublas;
WorkspaceMap<decltype(at::cuda::cublaslt_handle_stream_to_workspace())> g_cublaslt;

// Under the lock of attach(), once torch is loaded.
void find_workspace_maps() noexcept {
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  if (torch_cuda == nullptr) return;
  g_cublas.find(torch_cuda, "_ZN2at4cuda33cublas_handle_stream_to_workspaceEv");
  g_cublaslt.find(torch_cuda, "_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv");
  dlclose(torch_cuda);  // torch itself keeps it loaded
}

int64_t read_workspaces(pytracer_workspace* found, int64_t room) noexcept {
  return g_cublaslt.append(true, found, g_cublas.append(false, found, 0, room), room);
}

}  // namespace
