// libascendcl.so, part 3: the arguments of operators. The operators themselves, aclnn…, are
// generated stubs that do nothing and need no workspace.
#include <acl/acl_op_compiler.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <vector>

#include "npu.h"

using namespace simulated;
using namespace simulated::npu;

namespace {

// Descriptions of tensors and attributes are opaque to torch_npu, which only rejects null. They are
// never freed.
char the_object[4096];

// Of a tensor, torch_npu reads the shape back after operators that find elements. Only the latest
// ones are kept: it reads them at once.
using Shape = std::vector<int64_t>;
Shape shapes[1024];
std::atomic<unsigned> created;

template <typename Object>
Object* object() {
  return reinterpret_cast<Object*>(the_object);
}

constexpr int kSystemOptions = 16;
int64_t system_options[kSystemOptions];

bool is_option(aclSysParamOpt option) {
  return static_cast<int>(option) >= 0 && static_cast<int>(option) < kSystemOptions;
}

}  // namespace

extern "C" {

aclDataBuffer* aclCreateDataBuffer(void*, size_t) { return object<aclDataBuffer>(); }

aclTensorDesc* aclCreateTensorDesc(aclDataType, int, const int64_t*, aclFormat) {
  return object<aclTensorDesc>();
}

aclopAttr* aclopCreateAttr() { return object<aclopAttr>(); }

// Declared in the headers of CANN's operators, which torch_npu does not need either.
void* aclCreateTensor(const int64_t* sizes, uint64_t count) {
  Shape& shape = shapes[created++ % std::size(shapes)];
  shape.assign(sizes, sizes + count);
  return &shape;
}
void* aclCreateTensorList() { return the_object; }
void* aclCreateScalar() { return the_object; }
void* aclCreateScalarList() { return the_object; }
void* aclCreateIntArray() { return the_object; }
void* aclCreateFloatArray() { return the_object; }
void* aclCreateBoolArray() { return the_object; }

aclError aclopCompileAndExecute(const char*, int, const aclTensorDesc* const[],
                                const aclDataBuffer* const[], int, const aclTensorDesc* const[],
                                aclDataBuffer* const[], const aclopAttr*, aclopEngineType,
                                aclopCompileType, const char*, aclrtStream) {
  count(Counter::launch);
  return ACL_SUCCESS;
}

aclError aclopCompileAndExecuteV2(const char*, int, aclTensorDesc*[], aclDataBuffer*[], int,
                                  aclTensorDesc*[], aclDataBuffer*[], aclopAttr*, aclopEngineType,
                                  aclopCompileType, const char*, aclrtStream) {
  count(Counter::launch);
  return ACL_SUCCESS;
}

// No element is found. Their number is the last size of this operator's result, and the first of
// others.
int aclnnNonzeroV2GetWorkspaceSize(const Shape*, Shape* found) {
  found->back() = 0;
  return ACL_SUCCESS;
}

int aclGetViewShape(const Shape* shape, int64_t** sizes, uint64_t* count) {
  *count = shape->size();
  *sizes = new int64_t[*count];  // torch_npu frees them
  std::copy(shape->begin(), shape->end(), *sizes);
  if (*count > 0 && shape->back() != 0) **sizes = 0;
  note_read(*sizes, nullptr, sizeof(**sizes));
  return ACL_SUCCESS;
}

// Options that torch_npu reads back. The import fails without the first option, operators fail
// without the last, of which torch_npu understands "enable" and "disable".

aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  if (!is_option(option)) return ACL_ERROR_INVALID_PARAM;
  system_options[option] = value;
  return ACL_SUCCESS;
}

aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  if (!is_option(option)) return ACL_ERROR_INVALID_PARAM;
  *value = system_options[option];
  return ACL_SUCCESS;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  return aclrtSetSysParamOpt(option, value);
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  return aclrtGetSysParamOpt(option, value);
}

size_t aclGetCompileoptSize(aclCompileOpt) { return sizeof("disable"); }

aclError aclGetCompileopt(aclCompileOpt, char* value, size_t length) {
  if (length < sizeof("disable")) return ACL_ERROR_INVALID_PARAM;
  std::strcpy(value, "disable");
  return ACL_SUCCESS;
}

aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }

aclError aclrtGetDeviceResLimit(int32_t, aclrtDevResLimitType, uint32_t* cores) {
  *cores = kCores;
  return ACL_SUCCESS;
}

aclError aclrtGetStreamResLimit(aclrtStream, aclrtDevResLimitType, uint32_t* cores) {
  *cores = kCores;
  return ACL_SUCCESS;
}

aclError aclrtGetResInCurrentThread(aclrtDevResLimitType, uint32_t* cores) {
  *cores = kCores;
  return ACL_SUCCESS;
}

// torch_npu warns if this function is missing.
int HcclSetConfig(int, int64_t) { return ACL_SUCCESS; }

}  // extern "C"
