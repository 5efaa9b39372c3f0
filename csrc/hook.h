// The C interface between an allocator hook and the recorder.
//
// A hook is a small shared library compiled against the headers of the torch that is running; the
// recorder is compiled against no torch at all. They meet here, in plain C, so that neither needs
// to know the other's C++ ABI. Change anything below and PYTRACER_HOOK_ABI goes up by one.
#ifndef PYTRACER_HOOK_H
#define PYTRACER_HOOK_H

#include <stddef.h>
#include <stdint.h>

#define PYTRACER_HOOK_ABI 4u

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

// What an allocator notes beside an allocation. UTF-8, NUL-terminated; "" for none.
typedef struct pytracer_labels {
  const char* compile_context;
  const char* user_metadata;
  const char* internal_metadata;
} pytracer_labels;

// One allocator event, as the hook hands it over. Lives on the hook's stack.
typedef struct pytracer_event {
  uint64_t address;
  uint64_t size;               // bytes; 0 for a free whose size the allocator does not know
  uint64_t stream;
  uint64_t pool_high;          // MempoolId_t, first and second
  uint64_t pool_low;
  uint64_t autograd_sequence;  // 0: not known
  int64_t ticks;               // of the hook's clock; 0 where it has none
  const pytracer_labels* labels;  // null: none of them
  int16_t device;              // PYTRACER_CPU_DEVICE or the accelerator's index
  uint8_t action;              // enum pytracer_action
} pytracer_event;

// Any thread; the GIL may or may not be held; never throws, never waits for the GIL.
typedef void (*pytracer_record_fn)(const pytracer_event* event);

// Told, in bytes, what was asked for in vain, and of the device's memory all there is and what is
// free. The calling thread holds no lock; the GIL may or may not be held, and may be waited for.
// Never throws.
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

// A setting of the allocator: the kind tells which of the values it is.
enum pytracer_kind { PYTRACER_BOOLEAN, PYTRACER_INTEGER, PYTRACER_REAL, PYTRACER_TEXT };
typedef struct pytracer_setting {
  const char* group;  // null, or the key of the dict that the setting is an item of
  const char* key;
  const char* text;
  double real;
  int64_t integer;  // or boolean
  int32_t kind;     // enum pytracer_kind
} pytracer_setting;

// What a device's allocator has counted since the process began, or was told to count anew.
typedef struct pytracer_statistics {
  uint64_t peak_reserved_bytes;
  uint64_t peak_allocated_bytes;
  uint64_t device_allocs;  // memory taken from the device, and given back to it
  uint64_t device_frees;
  uint64_t retries;  // allocations for which cached memory had to be given back
  uint64_t ooms;     // allocations that failed for good
  double memory_fraction;  // of the device, that the program allows itself; 0: not known
  int16_t device;
} pytracer_statistics;

// Who receives the allocator's state. The functions never throw.
typedef struct pytracer_state_sink {
  void* context;
  void (*segment)(void* context, const pytracer_segment* segment);
  void (*setting)(void* context, const pytracer_setting* setting);  // those of a group in a row
  void (*statistics)(void* context, const pytracer_statistics* statistics);
} pytracer_state_sink;

typedef struct pytracer_hook {
  uint32_t abi;         // PYTRACER_HOOK_ABI of the header the hook was compiled against
  const char* backend;  // "cpu", "cuda" or "npu"
  // Installs the hook; may be called again (does nothing then). `enabled` stays valid for ever and
  // is read before each event: while it is 0 the hook calls nobody. Returns PYTRACER_NOT_READY
  // while the device is not initialised, and else 0, or PYTRACER_FAILED with the reason, a sentence
  // for the user, in `message`.
  int32_t (*attach)(pytracer_record_fn record, const uint32_t* enabled, char* message,
                    size_t message_size);
  // The clock that events' ticks are of; null: events carry no time, the recorder stamps them.
  int64_t (*now)(void);
  // Hands over all segments, ordered by device and address, and each device's statistics. On the calling thread, before it
  // returns, `record` gets one PYTRACER_SNAPSHOT for each device, at the instant its segments are
  // collected and under its lock. Any thread, not in a hook. Returns as attach does. Null: the
  // allocator has no segments.
  int32_t (*snapshot)(const pytracer_state_sink* sink, char* message, size_t message_size);
  // Called before `attach`: whenever an allocation has failed for good while `enabled`, `tell` is to
  // be called on its thread, after the event and before the exception goes on. Null: torch has
  // observers for that.
  void (*observe_oom)(pytracer_oom_fn tell);
} pytracer_hook;

// The one symbol a hook exports.
typedef const pytracer_hook* (*pytracer_hook_entry)(void);
#define PYTRACER_HOOK_SYMBOL "pytracer_hook_v1"

#ifdef __cplusplus
}
#endif
#endif
