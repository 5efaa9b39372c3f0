// The C interface between an allocator hook and the recorder.
//
// A hook is a small shared library compiled against the headers of the torch that is running; the
// recorder is compiled against no torch at all. They meet here, in plain C, so that neither needs
// to know the other's C++ ABI. Change anything below and PYTRACER_HOOK_ABI goes up by one.
#ifndef PYTRACER_HOOK_H
#define PYTRACER_HOOK_H

#include <stddef.h>
#include <stdint.h>

#define PYTRACER_HOOK_ABI 1u

#ifdef __cplusplus
extern "C" {
#endif

// The order is ours; each hook translates its allocator's enumeration.
enum pytracer_action {
  PYTRACER_ALLOC = 0,
  PYTRACER_FREE_REQUESTED = 1,
  PYTRACER_FREE_COMPLETED = 2,
  PYTRACER_SEGMENT_ALLOC = 3,
  PYTRACER_SEGMENT_FREE = 4,
  PYTRACER_SEGMENT_MAP = 5,
  PYTRACER_SEGMENT_UNMAP = 6,
  PYTRACER_SNAPSHOT = 7,
  PYTRACER_OOM = 8,
  PYTRACER_WORKSPACE_SNAPSHOT = 9,
  PYTRACER_ANNOTATE = 10,
  PYTRACER_ACTION_COUNT = 11,
};

#define PYTRACER_CPU_DEVICE (-1)

// One allocator event, as the hook hands it over. Lives on the hook's stack.
typedef struct pytracer_event {
  uint64_t address;
  uint64_t size;               // bytes; 0 for a free whose size the allocator does not know
  uint64_t stream;
  uint64_t pool_high;          // MempoolId_t, first and second
  uint64_t pool_low;
  uint64_t autograd_sequence;  // 0: not known
  int16_t device;              // PYTRACER_CPU_DEVICE or the accelerator's index
  uint8_t action;              // enum pytracer_action
} pytracer_event;

// Any thread; the GIL may or may not be held; never throws, never waits for the GIL.
typedef void (*pytracer_record_fn)(const pytracer_event* event);

typedef struct pytracer_hook {
  uint32_t abi;         // PYTRACER_HOOK_ABI of the header the hook was compiled against
  const char* backend;  // "cpu", "cuda" or "npu"
  // Installs the hook; may be called again (does nothing then). `enabled` stays valid for ever and
  // is read before each event: while it is 0 the hook calls nobody. Returns 0, or nonzero with the
  // reason, a sentence for the user, in `message`.
  int32_t (*attach)(pytracer_record_fn record, const uint32_t* enabled, char* message,
                    size_t message_size);
} pytracer_hook;

// The one symbol a hook exports.
typedef const pytracer_hook* (*pytracer_hook_entry)(void);
#define PYTRACER_HOOK_SYMBOL "pytracer_hook_v1"

#ifdef __cplusplus
}
#endif
#endif
