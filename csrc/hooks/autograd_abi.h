// The C interface between the recorder and the library that reads autograd's state (autograd.cpp).
//
// The library is compiled against the running torch's headers, as a hook is, but apart from the
// hooks: where it cannot be had, the hooks work without it. Any change of this file raises
// PYTRACER_AUTOGRAD_ABI by one.
#pragma once

#include <stdint.h>

#define PYTRACER_AUTOGRAD_ABI 5u
#ifdef __cplusplus
extern "C" {
#endif

// What autograd knows on the calling thread. Each thread numbers the nodes that it makes.
typedef struct pytracer_autograd_state {
  uint64_t thread;         // torch's number of the calling thread; never used again
  uint64_t next_sequence;  // the number of the next node that this thread makes
  // The running node, if `node` is not null. It stays valid as long as the thread runs it.
  const void* node;
  const char* node_type;   // the mangled name of its C++ type, static
  uint64_t node_thread;    // the thread that made it
  uint64_t node_sequence;  // its number on that thread; UINT64_MAX: it has none
} pytracer_autograd_state;

// The functions may be called on any thread, inside an allocator. They take no lock, allocate
// nothing and never throw.
typedef struct pytracer_autograd {
  uint32_t abi;  // PYTRACER_AUTOGRAD_ABI of the header that the library was compiled against
  void (*read)(pytracer_autograd_state* state);
  // What read() would write as `next_sequence`: a small part of its cost.
  uint64_t (*next_sequence)(void);
  // What read() would write as `node_type`, or null if no node runs.
  const char* (*running_type)(void);
  // Whether the thread runs an operator's kernel that autograd has called, in grad mode.
  int32_t (*runs_kernel)(void);
  // Whether the first tensor that the forward call of `node` returned has elements. If so,
  // `is_on_cpu` says where they are. 0 too if that is unknown.
  int32_t (*has_output)(const void* node, int32_t* is_on_cpu);
  // Whether the first argument and the result of the forward call are known to have other shapes. A
  // call in place returns its first argument.
  int32_t (*changes_shape)(const void* node);
  // Whether the node computes the gradients of at least two inputs of its forward call.
  int32_t (*has_two_gradients)(const void* node);
  // Where the elements begin of the tensor whose gradient the node accumulates, and their device
  // (PYTRACER_CPU_DEVICE: the CPU). 0: it is another node, or the tensor has no memory of its own.
  uint64_t (*accumulates_into)(const void* node, int32_t* device);
} pytracer_autograd;

// The one symbol that the library exports.
typedef const pytracer_autograd* (*pytracer_autograd_entry)(void);
#define PYTRACER_AUTOGRAD_SYMBOL "pytracer_autograd_v1"

#ifdef __cplusplus
}
#endif
