// libcublasLt.so: the functions whose results are used; stubs.py makes stubs for the
// rest.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "types.h"

using namespace simulated::cuda;

namespace {

// Handles and descriptors are opaque; callers of cuBLAS-Lt keep some in their own storage, of up to
// 512 bytes, and may read it.
int create(void** object) {
  *object = std::calloc(1, 512);
  return kSuccess;
}

int destroy(void* object) {
  std::free(object);
  return kSuccess;
}

// cublasLtMatmulHeuristicResult_t.
struct MatmulChoice {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130100; }
int cublasLtCreate(void** handle) { return create(handle); }
int cublasLtDestroy(void* handle) { return destroy(handle); }
int cublasLtMatmulDescCreate(void** descriptor, int, int) { return create(descriptor); }
int cublasLtMatmulDescDestroy(void* descriptor) { return destroy(descriptor); }
int cublasLtMatrixLayoutCreate(void** layout, int, uint64_t, uint64_t, int64_t) {
  return create(layout);
}
int cublasLtMatrixLayoutDestroy(void* layout) { return destroy(layout); }
int cublasLtMatmulPreferenceCreate(void** preference) { return create(preference); }
int cublasLtMatmulPreferenceDestroy(void* preference) { return destroy(preference); }

// torch fails if there is no algorithm to choose from.
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int requested,
                                   MatmulChoice* choices, int* returned) {
  *returned = requested > 0 ? 1 : 0;
  if (requested > 0) choices[0] = {};
  return kSuccess;
}

}  // extern "C"
