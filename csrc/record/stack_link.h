// What a stack of an allocation in an autograd node says besides the thread's own frames.
//
// Such a stack is the thread's own stack and, in the places of more frames, links: one to the
// forward stack of the node, one to the parameter that it accumulates into, one to its type. So an event
// carries one number.
#pragma once

#include <cstdint>

namespace pytracer {

class StackLink {
 public:
  static constexpr uint32_t kMost = 3;  // in a stack

  static bool is_link(uint32_t frame) noexcept { return frame >= kNode; }

  // 0 for stack 0. The stack has no links itself.
  static uint32_t forward(uint32_t stack, bool is_exact) noexcept {
    return stack != 0 ? kForward | (is_exact ? kExact : 0) | stack : 0;
  }
  // 0 if both are; types are those of NodeTypes, and have 10 bits. `phase` is the forward call's.
  static uint32_t node(uint32_t type, uint16_t phase) noexcept {
    return type != 0 || phase != 0 ? kNode | uint32_t{phase} << kTypeBits | type : 0;
  }

  // 0 for parameter 0; parameters are those of ParameterNumbers.
  static uint32_t parameter(uint32_t number) noexcept {
    return number != 0 ? kNode | kExact | number : 0;
  }

  static bool is_parameter(uint32_t frame) noexcept {
    return (frame & (kForward | kNode | kExact)) == (kNode | kExact);
  }
  static uint32_t parameter_of(uint32_t frame) noexcept { return frame & (kExact - 1); }
  // The forward stack; 0: the frame is no such link.
  static uint32_t forward_of(uint32_t frame) noexcept {
    return (frame & kForward) != 0 ? frame & (kExact - 1) : 0;
  }
  static bool is_exact(uint32_t frame) noexcept { return (frame & kExact) != 0; }
  static uint32_t node_of(uint32_t frame) noexcept { return frame & ((1u << kTypeBits) - 1); }
  static uint16_t phase_of(uint32_t frame) noexcept {
    return static_cast<uint16_t>(frame >> kTypeBits);
  }

 private:
  // Frames and stacks have smaller numbers (StackTable::kMostStacks).
  static constexpr uint32_t kForward = 1u << 31, kNode = 1u << 30, kExact = 1u << 29;
  static constexpr uint32_t kTypeBits = 10;
};

struct Backward {
  uint32_t own;        // the thread's own stack, as all events have it; 0: none
  uint32_t forward;    // the stack of the forward call that made the node; 0: unknown
  uint32_t node_type;  // as in NodeTypes; 0: unknown
  bool is_exact;       // `forward` is that of this node, not of a neighbour
  uint16_t phase = 0;  // of the forward call's thread; 0: none
  uint32_t parameter = 0;  // whose gradient the node accumulates, as in ParameterNumbers; 0: unknown

  // What one link says.
  void add(uint32_t link) noexcept {
    if (const uint32_t stack = StackLink::forward_of(link)) {
      forward = stack;
      is_exact = StackLink::is_exact(link);
    } else if (StackLink::is_parameter(link)) {
      parameter = StackLink::parameter_of(link);
    } else {
      node_type = StackLink::node_of(link);
      phase = StackLink::phase_of(link);
    }
  }
};

}  // namespace pytracer
