// The C interface between an allocator hook and the recorder.
//
// A hook is a small shared library that is compiled against the running torch's headers; the
// recorder is compiled against no torch. A C interface keeps their C++ ABIs apart. Any change of it
// raises PYTRACER_HOOK_ABI by one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PYTRACER_HOOK_ABI 7u
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
#define PYTRACER_HOST_DEVICE 64  // pinned host memory; accelerators have smaller indices

// Texts that an allocator notes with an allocation. UTF-8, NUL-terminated; "" for none.
typedef struct pytracer_labels {
  const char* compile_context;
  const char* user_metadata;
  const char* internal_metadata;
} pytracer_labels;

// One allocator event. It is on the hook's stack.
typedef struct pytracer_event {
  uint64_t address;
  uint64_t size;               // bytes; 0 for a free whose size the allocator does not know
  uint64_t stream;
  uint64_t pool_high;          // MempoolId_t, first and second
  uint64_t pool_low;
  int64_t ticks;               // of the hook's clock; 0 where it has none
  const pytracer_labels* labels;  // null: no labels
  int16_t device;              // PYTRACER_CPU_DEVICE, PYTRACER_HOST_DEVICE or the accelerator's index
  uint8_t action;              // enum pytracer_action
} pytracer_event;

// Any thread, with or without the GIL. Never throws, never waits for the GIL.
typedef void (*pytracer_record_fn)(const pytracer_event* event);

// Gets, in bytes, the request that failed, and the device's total and free memory. The calling
// thread holds no lock; the function may wait for the GIL. Never throws.
typedef void (*pytracer_oom_fn)(uint64_t requested_size, uint64_t total_size, uint64_t free_size);

enum pytracer_block_state {
  PYTRACER_INACTIVE = 0,
  PYTRACER_ACTIVE_PENDING_FREE = 1,
  PYTRACER_ACTIVE_ALLOCATED = 2,
};

typedef struct pytracer_block {
  uint64_t size;
  uint64_t requested_size;
  uint64_t state;  // enum pytracer_block_state
} pytracer_block;

// A contiguous range of device memory; its blocks follow each other without a gap.
typedef struct pytracer_segment {
  uint64_t address;
  uint64_t stream;
  uint64_t pool_high;
  uint64_t pool_low;
  uint64_t total_size;
  uint64_t allocated_size;
  uint64_t active_size;
  uint64_t requested_size;
  size_t block_count;
  const pytracer_block* blocks;
  int16_t device;
  uint8_t is_large;
  uint8_t is_expandable;
} pytracer_segment;

enum pytracer_result { PYTRACER_DONE = 0, PYTRACER_FAILED = 1, PYTRACER_NOT_READY = 2 };
// A setting of the allocator: `kind` says which field has the value.
enum pytracer_kind { PYTRACER_BOOLEAN, PYTRACER_INTEGER, PYTRACER_REAL, PYTRACER_TEXT };
typedef struct pytracer_setting {
  const char* group;  // the key of the dict that has the setting; null: the outermost dict
  const char* key;
  const char* text;
  double real;
  int64_t integer;  // or boolean
  int32_t kind;     // enum pytracer_kind
} pytracer_setting;

// What a device's allocator counted since the process began or its statistics were reset.
typedef struct pytracer_statistics {
  uint64_t peak_reserved_bytes;
  uint64_t peak_allocated_bytes;
  uint64_t device_allocs;  // memory taken from the device and returned to it
  uint64_t device_frees;
  uint64_t retries;  // allocations for which cached memory was returned first
  uint64_t ooms;     // allocations that failed for good
  double memory_fraction;  // the share of the device that the program may take; 0: unknown
  int16_t device;
} pytracer_statistics;

// Receives the allocator's state. The functions never throw.
typedef struct pytracer_state_sink {
  void* context;
  void (*segment)(void* context, const pytracer_segment* segment);
  void (*setting)(void* context, const pytracer_setting* setting);  // groups are consecutive
  void (*statistics)(void* context, const pytracer_statistics* statistics);
} pytracer_state_sink;

// A block that torch keeps as the workspace of cuBLAS for one handle and stream.
typedef struct pytracer_workspace {
  uint64_t address;
  int16_t device;
  uint8_t is_lt;  // whether it is cuBLASLt's
} pytracer_workspace;

typedef struct pytracer_hook {
  uint32_t abi;         // PYTRACER_HOOK_ABI of the header that the hook was compiled against
  const char* backend;  // "cpu", "cuda", "npu" or "host"
  // Installs the hook; a second call does nothing. Two threads must not call it at once: a lock in
  // the hook could stay locked in a forked child. `enabled` stays valid for ever; while it is 0 the
  // hook reports nothing. Returns PYTRACER_NOT_READY while the device is not initialised, else 0,
  // or PYTRACER_FAILED with the reason, a sentence for the user, in `message`.
  int32_t (*attach)(pytracer_record_fn record, const uint32_t* enabled, char* message,
                    size_t message_size);
  // The clock of events' ticks; null: events carry no time, and the recorder stamps them.
  int64_t (*now)(void);
  // Reports all segments, ordered by device and address, and each device's statistics. Meanwhile
  // `record` gets on this thread one PYTRACER_SNAPSHOT a device, when its segments are collected,
  // under its lock. Any thread, not in a hook. Returns as attach does. Null: there are no segments.
  int32_t (*snapshot)(const pytracer_state_sink* sink, char* message, size_t message_size);
  // Called before `attach`: `report` must be called whenever an allocation failed for good while
  // `enabled`, on its thread, after the event and before the exception goes on. Null: torch has
  // observers for that.
  void (*observe_oom)(pytracer_oom_fn report);
  // Writes up to `room` workspaces to `found` and returns how many there are; -1: another thread
  // changes them. After `attach`; any thread, not in a hook. Waits for nothing, and makes no
  // workspace. Null: torch has no list of them.
  int64_t (*workspaces)(pytracer_workspace* found, int64_t room);
} pytracer_hook;

// The one symbol that a hook exports.
typedef const pytracer_hook* (*pytracer_hook_entry)(void);
#define PYTRACER_HOOK_SYMBOL "pytracer_hook_v1"

#ifdef __cplusplus
}
#endif
