#include <pthread.h>

#include <cstring>

#include "session/registry.h"

namespace pytracer {

namespace {

constexpr char kNode[] = "backward";  // its address stands for the node, too

enum class Kind : char { not_asked, autograd, other };
// As in thread_slot.h. torch names a thread before it runs a node, so the first answer stays true. A
// thread that a node starts inherits the name, and is then taken for one of autograd.
__thread Kind this_thread __attribute__((tls_model("initial-exec"))) = Kind::not_asked;

Kind kind_by_name() noexcept {
  char name[16] = "";
  constexpr char kPrefix[] = "pt_autograd_";
  const bool is_autograd = pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
                           std::strncmp(name, kPrefix, sizeof(kPrefix) - 1) == 0;
  return is_autograd ? Kind::autograd : Kind::other;
}

const char* running_type() {
  if (this_thread == Kind::not_asked) this_thread = kind_by_name();
  return this_thread == Kind::autograd ? kNode : nullptr;
}

void read(pytracer_autograd_state* state) {
  *state = {};
  state->node_type = running_type();
  state->node = state->node_type;
  state->node_sequence = UINT64_MAX;
}

uint64_t no_sequence() { return 0; }
int32_t no() { return 0; }
int32_t no_output(const void*, int32_t*) { return 0; }
int32_t not_known(const void*) { return 0; }
uint64_t no_parameter(const void*, int32_t*) { return 0; }

}  // namespace

const pytracer_autograd autograd_threads = {PYTRACER_AUTOGRAD_ABI, &read,      &no_sequence,
                                            &running_type,         &no,        &no_output,
                                            &not_known,            &not_known, &no_parameter};

}  // namespace pytracer
