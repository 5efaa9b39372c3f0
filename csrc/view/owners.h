// Who owns the memory of live blocks: parameters, gradients, buffers, optimizers' states, cuBLAS, and
// autograd's graphs, which keep activations.
//
// 1. An owner is a tensor or a workspace, as Python read it between a mark (Session::mark) and a
//    capture.
// 2. A block is named only if it was live from the mark to the capture: whatever was at its address
//    meanwhile was in that block. A block that is younger than the mark is `too_new`.
// 3. An owner that does not lie within one block names none.
// 4. Of several owners of exactly the same bytes, the first one counts; if owners of other bytes in
//    a block have another category, the block is `mixed`.
// 5. Constant once made; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "record/device_log.h"

namespace pytracer {

// The names are below, and in pytracer/owners/.
enum class Category : uint8_t {
  unknown, parameter, buffer, gradient, optimizer_state, mixed, workspace, activation
};

// Why a block has its category.
enum class Rule : uint8_t {
  no_owner,   // no known tensor has this memory
  too_new,    // allocated after the owners were read, or not known to the recorder
  module,     // a parameter or buffer of a module
  optimizer,  // a parameter of an optimizer, or a tensor of its state
  grad,       // a parameter's `grad`
  several,    // owners of different categories
  cublas,     // a workspace that torch keeps for cuBLAS
  saved_by_node,  // a node of a graph keeps it for its backward pass
};

inline constexpr std::array kCategoryNames{
    "unknown", "parameter", "buffer", "gradient", "optimizer_state", "mixed", "workspace", "activation"};
inline constexpr std::array kRuleNames{
    "no_owner", "too_new", "module", "optimizer", "grad", "several", "cublas", "saved_by_node"};

struct Owner {
  uint64_t address;
  uint64_t size;  // bytes
  int device;
  Category category;
  Rule rule;
  std::string name;
};

// The Python object that holds a tensor without an owner, a graph that keeps an activation, or one of
// several models or optimizers.
struct Holder {
  uint64_t address;  // where the storage begins
  int device;
  std::string text;  // "losses[41] of main()"; "": nobody was found
};

class Owners {
 public:
  struct Missing {
    uint64_t tensors;    // that were not read
    uint64_t gradients;  // that this thread may not read
    bool modules;        // the search for older modules and optimizers was cut short
    uint64_t holders;    // tensors for whose holders there was no time or no room
  };
  // `unheld`: the text for memory without an owner and a holder; "": some tensors were not looked at.
  Owners(std::vector<DeviceLog::Mark> marks, std::vector<Owner> owners,
         std::vector<Holder> holders, Missing missing, std::string unheld);

  struct Found {
    Category category = Category::unknown;
    Rule rule = Rule::no_owner;
    const Owner* first = nullptr;  // the largest one
    uint64_t count = 0;            // how many owners the block has
    const std::string* holder = nullptr;  // null: unknown, or of no interest
  };
  // `live`: the live table's entry of the block, or null.
  Found find(uint64_t address, uint64_t size, const LiveBlock* live,
             const DeviceLog::Capture& capture, int device) const;
  // The first parameter that begins at an address; null if there is none, or one of another size.
  const Owner* parameter_at(uint64_t address, int device) const;
  // Whether a block was live from the mark to the capture. `live`: as above.
  bool was_live(const LiveBlock* live, const DeviceLog::Capture& capture, int device) const;
  uint64_t count() const noexcept { return owners_.size(); }
  const Missing& missing() const noexcept { return missing_; }

 private:
  std::vector<DeviceLog::Mark> marks_;
  std::vector<Owner> owners_;    // by device and address
  std::vector<Holder> holders_;  // by device and address
  const Missing missing_;
  const std::string unheld_;
};

}  // namespace pytracer
