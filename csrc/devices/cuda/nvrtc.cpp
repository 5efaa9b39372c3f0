// libnvrtc.so: the functions whose results are used. A compiled program is one byte.
#include <cstddef>

#include "devices.h"

using namespace simulated::cuda;

namespace {

char the_program;

int one_byte(size_t* bytes) {
  *bytes = 1;
  return kSuccess;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = cuda_version() / 1000;
  *minor = cuda_version() % 1000 / 10;
  return kSuccess;
}

int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  *program = &the_program;
  return kSuccess;
}

int nvrtcGetPTXSize(void*, size_t* bytes) { return one_byte(bytes); }
int nvrtcGetCUBINSize(void*, size_t* bytes) { return one_byte(bytes); }
int nvrtcGetProgramLogSize(void*, size_t* bytes) { return one_byte(bytes); }

int nvrtcGetPTX(void*, char* code) {
  *code = '\0';
  return kSuccess;
}

int nvrtcGetCUBIN(void* program, char* code) { return nvrtcGetPTX(program, code); }
int nvrtcGetProgramLog(void* program, char* log) { return nvrtcGetPTX(program, log); }

int nvrtcGetLoweredName(void*, const char* expression, const char** name) {
  *name = expression;
  return kSuccess;
}

const char* nvrtcGetErrorString(int) { return "error of the simulated NVRTC"; }

}  // extern "C"
