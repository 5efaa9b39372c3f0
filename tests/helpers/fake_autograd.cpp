// Stands in for the library that reads autograd's state, so that the core's own cost can be counted
// without torch. `fake_autograd_mode` chooses what the calling thread runs.
#include "hooks/autograd_abi.h"

extern "C" {

// 0: nothing new; 1: an operator that has made a node since the last call; 2: a node.
int fake_autograd_mode = 0;

static uint64_t made = 1;
static const char* const kBmm = "N5torch8autograd9generated12BmmBackward0E";

static uint64_t next_sequence(void) {
  if (fake_autograd_mode == 1) ++made;
  return made;
}

static void read(pytracer_autograd_state* state) {
  *state = {1, next_sequence(), nullptr, nullptr, 0, 0};
  if (fake_autograd_mode != 2) return;
  state->node = &made;
  state->node_type = kBmm;
  state->node_thread = 1;
  state->node_sequence = made - 1;
}

static const char* running_type(void) { return fake_autograd_mode == 2 ? kBmm : nullptr; }
static int32_t yes(void) { return 1; }
static int32_t has_output(const void*, int32_t* is_on_cpu) {
  *is_on_cpu = 0;
  return 1;
}
static int32_t no(const void*) { return 0; }
static uint64_t into_nothing(const void*, int32_t*) { return 0; }

__attribute__((visibility("default"))) const pytracer_autograd* pytracer_autograd_v1(void) {
  static const pytracer_autograd library = {PYTRACER_AUTOGRAD_ABI, read, next_sequence, running_type, yes,
                                            has_output, no, no, into_nothing};
  return &library;
}

}
