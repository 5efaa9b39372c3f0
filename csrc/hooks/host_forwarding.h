// An at::HostAllocator that forwards every virtual function to another one, the base.
//
// torch's interface grows with every release. A function that a release has is forwarded with the
// types that it has there; a release with a function that is unknown here is found by the number of
// its virtual functions (forwards_all).
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

namespace {

class ForwardsCommon : public at::HostAllocator {
 public:
  static at::HostAllocator& base() noexcept { return *base_; }
  static void set_base(at::HostAllocator* base) noexcept { base_ = base; }

  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return base().is_simple_data_ptr(pointer);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base().raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    base().copy_data(to, from, count);
  }
  at::HostStats get_stats() override { return base().get_stats(); }
  void reset_accumulated_stats() override { base().reset_accumulated_stats(); }
  void reset_peak_stats() override { base().reset_peak_stats(); }

 private:
  static inline at::HostAllocator* base_ = nullptr;
};

// has_NAME<Host>: whether Host has the function. With_NAME<Below, Host>: Below, and the function if
// Host has it, forwarded.
#define PYTRACER_FORWARDED(name)                                                            \
  template <class Host, class = void>                                                       \
  struct has_##name : std::false_type {};                                                   \
  template <class Host>                                                                     \
  struct has_##name<Host, std::void_t<decltype(&Host::name)>> : std::true_type {};          \
  template <class Below, class Method>                                                      \
  struct Forwards_##name;                                                                   \
  template <class Below, class Result, class... Arguments>                                  \
  struct Forwards_##name<Below, Result (at::HostAllocator::*)(Arguments...)> : Below {      \
    Result name(Arguments... arguments) override {                                          \
      return Below::base().name(std::forward<Arguments>(arguments)...);                     \
    }                                                                                       \
  };                                                                                        \
  template <class Below, class Result, class... Arguments>                                  \
  struct Forwards_##name<Below, Result (at::HostAllocator::*)(Arguments...) const> : Below { \
    Result name(Arguments... arguments) const override {                                    \
      return Below::base().name(std::forward<Arguments>(arguments)...);                     \
    }                                                                                       \
  };                                                                                        \
  template <class Below, class Host, bool = has_##name<Host>::value>                        \
  struct With_##name : Below {};                                                            \
  template <class Below, class Host>                                                        \
  struct With_##name<Below, Host, true> : Forwards_##name<Below, decltype(&Host::name)> {}

PYTRACER_FORWARDED(begin_allocate_to_pool);  // the first three: since torch 2.11
PYTRACER_FORWARDED(end_allocate_to_pool);
PYTRACER_FORWARDED(release_pool);
PYTRACER_FORWARDED(record_history);  // this and all that follow: since torch 2.15
PYTRACER_FORWARDED(is_history_enabled);
PYTRACER_FORWARDED(get_segments);
PYTRACER_FORWARDED(get_traces);
PYTRACER_FORWARDED(record_external_register);
PYTRACER_FORWARDED(record_external_unregister);
#undef PYTRACER_FORWARDED

template <class Host>
using ForwardsPools = With_release_pool<
    With_end_allocate_to_pool<With_begin_allocate_to_pool<ForwardsCommon, Host>, Host>, Host>;
template <class Host>
using ForwardsHistory = With_get_traces<
    With_get_segments<With_is_history_enabled<With_record_history<ForwardsPools<Host>, Host>, Host>,
                      Host>,
    Host>;
// What is left to the class that derives from it: allocate(), record_event() and empty_cache().
template <class Host>
using Forwards = With_record_external_unregister<
    With_record_external_register<ForwardsHistory<Host>, Host>, Host>;

// The number of the virtual function in its class's table (Itanium C++ ABI).
template <class Method>
size_t slot(Method method) noexcept {
  std::ptrdiff_t words[2];
  static_assert(sizeof(method) == sizeof(words));
  std::memcpy(words, &method, sizeof(words));
#if defined(__aarch64__)
  return static_cast<size_t>(words[0]) / sizeof(void*);
#else
  return static_cast<size_t>(words[0] - 1) / sizeof(void*);
#endif
}
struct AfterAllocator : c10::Allocator {
  virtual void last() = 0;
};
struct AfterHostAllocator : at::HostAllocator {
  virtual void last() = 0;
};

// Whether all virtual functions of the running torch are forwarded.
template <class Host>
bool forwards_all() noexcept {
  constexpr size_t kOfAllocator = 6;  // the destructor counts twice
  constexpr size_t kCommon = 5;       // record_event, empty_cache, three about statistics
  constexpr size_t kOptional =
      has_begin_allocate_to_pool<Host>::value + has_end_allocate_to_pool<Host>::value +
      has_release_pool<Host>::value + has_record_history<Host>::value +
      has_is_history_enabled<Host>::value + has_get_segments<Host>::value +
      has_get_traces<Host>::value + has_record_external_register<Host>::value +
      has_record_external_unregister<Host>::value;
  return slot(&AfterAllocator::last) == kOfAllocator &&
         slot(&AfterHostAllocator::last) == kOfAllocator + kCommon + kOptional;
}

}  // namespace
