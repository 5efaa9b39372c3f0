// libsimulated_beside_cuda.so, preloaded where torch_npu has to run beside a CUDA build of torch.
// Both enter names of allocator settings into one set of torch's, some of them the same, and from
// torch 2.14 on the second entry of a name ends the process. This function takes the place of the
// one that returns the set: CUDA's names go elsewhere. No CUDA device is shown then, so that nobody
// misses them.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_set>

namespace {

using Names = std::unordered_set<std::string>;

constexpr const char* kMangled =
    "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev";

// torch's own. Its library is loaded before any that could ask.
Names& names_of_torch() {
  void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  void* function = c10 != nullptr ? dlsym(c10, kMangled) : nullptr;
  if (function == nullptr) {
    std::fprintf(stderr, "simulated: libc10.so has no %s\n", kMangled);
    std::abort();
  }
  return reinterpret_cast<Names& (*)()>(function)();
}

}  // namespace

// c10::CachingAllocator::AcceleratorAllocatorConfig::getMutableKeys()
extern "C" Names& get_mutable_keys() __asm__(
    "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev");

Names& get_mutable_keys() {
  static auto* names_of_cuda = new Names;
  Dl_info caller{};
  const bool found = dladdr(__builtin_return_address(0), &caller) != 0;
  if (found && std::strstr(caller.dli_fname, "libc10_cuda") != nullptr) return *names_of_cuda;
  return names_of_torch();
}
