// libcublas.so: the functions whose results are used; stubs.py makes stubs for the rest.
#include <cstdlib>

#include "types.h"

using namespace simulated::cuda;

extern "C" {

int cublasCreate_v2(void** handle) {
  *handle = std::calloc(1, 64);
  return kSuccess;
}

int cublasDestroy_v2(void* handle) {
  std::free(handle);
  return kSuccess;
}

int cublasGetVersion_v2(void*, int* version) {
  *version = 130100;
  return kSuccess;
}

int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return kSuccess;
}

int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return kSuccess;
}

}  // extern "C"
