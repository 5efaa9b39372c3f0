// libsimulated_next_to_cuda.so, which is preloaded when torch_npu runs next to a CUDA build of
// torch. Both register names of allocator settings in one set of torch, some of them the same
// names, and since torch 2.14 the second registration of a name ends the process. The function
// below replaces the function that returns the set, and gives CUDA another set. As no CUDA device
// is visible then, CUDA's names are not needed.
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

// torch's own function. Its library is loaded before any library that calls it.
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
