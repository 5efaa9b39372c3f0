// The names of the parameters whose gradients autograd accumulated, for the events of a snapshot.
//
// 1. A parameter is where its elements begin (ParameterNumbers). A name holds for an event only if
//    the block of the parameter's elements is live at the snapshot, has an owner that begins there,
//    and was allocated before the event.
// 2. Of two parameters that begin at one place with different sizes, none is named.
// 3. One thread; the view outlives it.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "view/view.h"

namespace pytracer {

class ParameterNames {
 public:
  explicit ParameterNames(const View& view);

  // At an allocation, or an out-of-memory, of this device with this number. Null: unknown.
  const std::string* at_event(uint32_t stack, int device, uint64_t sequence) const;
  // At the allocation of a live block. Null: unknown, also if the node accumulates nothing.
  const std::string* of_block(const LiveBlock& block, int device) const;

  // The number of the parameter that a stack names; 0: none.
  uint32_t parameter(uint32_t stack) const {
    return places_.empty() || stack == 0 ? 0 : stacks_.of(stack).backward(stack).parameter;
  }

 private:
  struct Place {
    int device;
    uint64_t address;
    const std::string* name;
    uint64_t since;  // events from this number on are later than the parameter
    uint32_t epoch;  // so are live blocks with a larger one
    bool is_live;    // the live table has the block
  };
  void find_places();
  void find_since(const DeviceView& device);
  const Place* place(uint32_t stack, int device) const;

  const View& view_;
  mutable StackReader stacks_;
  std::vector<Place> places_;                       // by device and address
  std::unordered_map<uint32_t, uint32_t> numbers_;  // of parameters; places, from 1 on
  std::map<std::pair<int, uint64_t>, uint64_t> allocated_;  // places that such nodes allocated, and the latest event
};

}  // namespace pytracer
