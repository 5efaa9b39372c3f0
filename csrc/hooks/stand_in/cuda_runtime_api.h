// Replaces the CUDA toolkit's header of this name, so that the CUDA hook compiles without a toolkit.
// It declares what c10/cuda's headers and ATen/cuda/CUDAContextLight.h use; the stand-ins for the
// headers of CUDA's libraries include it. The hook calls none of these functions, so nothing here is
// ever defined, and the functions take any arguments. Handles are pointers and enumerations
// integers, as in the CUDA runtime API.
#pragma once

#include <cstddef>

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;
using cudaUserObject_t = struct CUuserObject_st*;
using cudaGraphConditionalHandle = unsigned long long;
using cudaHostFn_t = void (*)(void*);
using cublasHandle_t = struct cublasContext*;
using cublasLtHandle_t = struct cublasLtContext*;
using cusolverDnHandle_t = struct cusolverDnContext*;
using cusparseHandle_t = struct cusparseContext*;
struct cudaDeviceProp;

enum cudaError_t : unsigned { cudaSuccess = 0, cudaErrorNotReady = 600 };
enum cudaMemcpyKind : unsigned { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureStatus : unsigned {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
enum cudaStreamCaptureMode : unsigned {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
enum cudaUserObjectFlags : unsigned { cudaUserObjectNoDestructorSync = 1 };
enum cudaUserObjectRetainFlags : unsigned { cudaGraphUserObjectMove = 1 };

#define PYTRACER_NEVER_CALLED(function) \
  template <class... Arguments>         \
  cudaError_t function(Arguments...)
PYTRACER_NEVER_CALLED(cudaDeviceGetStreamPriorityRange);
PYTRACER_NEVER_CALLED(cudaEventQuery);
PYTRACER_NEVER_CALLED(cudaGraphRetainUserObject);
PYTRACER_NEVER_CALLED(cudaMemGetInfo);
PYTRACER_NEVER_CALLED(cudaMemcpyAsync);
PYTRACER_NEVER_CALLED(cudaStreamGetCaptureInfo);
PYTRACER_NEVER_CALLED(cudaStreamGetCaptureInfo_v2);
PYTRACER_NEVER_CALLED(cudaStreamGetPriority);
PYTRACER_NEVER_CALLED(cudaStreamIsCapturing);
PYTRACER_NEVER_CALLED(cudaStreamQuery);
PYTRACER_NEVER_CALLED(cudaStreamSynchronize);
PYTRACER_NEVER_CALLED(cudaThreadExchangeStreamCaptureMode);
PYTRACER_NEVER_CALLED(cudaUserObjectCreate);
PYTRACER_NEVER_CALLED(cudaUserObjectRelease);
#undef PYTRACER_NEVER_CALLED

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t);
const char* cudaGetErrorName(cudaError_t);
