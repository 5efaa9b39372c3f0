#include "record/node_types.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

namespace pytracer {

namespace {

// The operators of torch whose result shares the memory of an argument.
constexpr std::string_view kViews =
    " Alias AsStrided Chunk Conj Detach Diagonal Expand Lift LiftFresh NegView NestedGetValues "
    "NestedViewFromBuffer NestedViewFromJagged Permute ReshapeAlias Select Slice Split "
    "SplitWithSizes Squeeze T Transpose Unbind Unfold UnsafeSplit UnsafeSplitWithSizes "
    "UnsafeView Unsqueeze Values View ViewAsComplex ViewAsReal ";

// The operators that torch has in place too (add_ for add). A node does not tell the two apart.
// tests/tracing/test_forward_stacks.py compares the list with the running torch.
constexpr std::string_view kInPlace =
    " Abs Acos Acosh Add Addbmm Addcdiv Addcmul Addmm Addmv Addr Asin Asinh Atan Atan2 Atanh Baddbmm "
    "Bernoulli Cauchy Ceil Celu Clamp ClampMax ClampMin ConjPhysical Copy Copysign Cos Cosh Cumprod Cumsum "
    "Deg2Rad Digamma Div Elu EmbeddingRenorm Eq Erf Erfc Erfinv Exp Exp2 Expm1 Exponential Fill "
    "Floor Fmod Frac Ge Gelu Geometric Gt Hardsigmoid Hardswish Hardtanh Hypot I0 Igamma Igammac "
    "IndexAdd IndexCopy IndexFill IndexPut IndexPutImpl IndexReduce Ldexp Le LeakyRelu Lerp "
    "Lgamma Log Log10 Log1P Log2 LogNormal Logit Lt MaskedFill MaskedScatter Mish Mul Mvlgamma "
    "NanToNum Ne Neg Nextafter Normal Polygamma Pow Put Rad2Deg Random Reciprocal Relu Remainder "
    "Renorm Round RreluWithNoise Rsqrt Scatter ScatterAdd ScatterReduce Sgn Sigmoid Sign Silu "
    "Sin Sinc Sinh Sqrt Sub Tan Tanh Threshold Tril Triu Trunc Uniform Xlogy Zero ";

// Of these, the nodes that need the argument as it was before the call. A call in place then copies
// it first, which makes a node of its own and allocates: so the next allocation is never taken for
// this node's. tests/tracing/test_forward_stacks.py compares the list with the running torch.
constexpr std::string_view kKeepsArgument =
    " AbsBackward0 AcosBackward0 AcoshBackward0 AsinBackward0 AsinhBackward0 AtanBackward0 "
    "AtanhBackward0 CeluBackward0 ClampBackward1 ClampMaxBackward0 ClampMinBackward0 CosBackward0 "
    "CoshBackward0 DigammaBackward0 EluBackward0 ErfBackward0 ErfcBackward0 ErfinvBackward0 "
    "GeluBackward0 HardsigmoidBackward0 HardswishBackward0 HardtanhBackward0 I0Backward0 "
    "LeakyReluBackward0 LgammaBackward0 Log10Backward0 Log1PBackward0 Log2Backward0 LogBackward0 "
    "LogitBackward0 MishBackward0 NanToNumBackward0 PowBackward0 RenormBackward0 SiluBackward0 "
    "SinBackward0 SincBackward0 SinhBackward0 ";

// The same, if the gradient of the second argument is wanted too.
constexpr std::string_view kKeepsBoth = " DivBackward0 DivBackward2 MulBackward0 ";

bool has_word(std::string_view words, std::string_view word) noexcept {
  for (size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    if (words[at - 1] == ' ' && words[at + word.size()] == ' ') return true;
  }
  return false;
}

// The derivatives of torch's own operators are in the namespace N5torch8autograd9generated.
NodeTypes::Output output_of(std::string_view mangled) noexcept {
  constexpr std::string_view kGenerated = "N5torch8autograd9generated", kForeach = "Foreach";
  if (mangled.substr(0, kGenerated.size()) != kGenerated) return NodeTypes::Output::unknown;
  std::string_view name = mangled.substr(kGenerated.size());
  while (!name.empty() && name.front() >= '0' && name.front() <= '9') name.remove_prefix(1);
  const size_t end = name.rfind("Backward");  // the operator itself may be a derivative
  if (end == std::string_view::npos) return NodeTypes::Output::unknown;
  const std::string_view type = name.substr(0, name.find('E', end));
  name = name.substr(0, end);
  if (name.empty() || name.substr(0, kForeach.size()) == kForeach || has_word(kViews, name)) {
    return NodeTypes::Output::unknown;
  }
  if (!has_word(kInPlace, name) || has_word(kKeepsArgument, type)) {
    return NodeTypes::Output::allocated;
  }
  return has_word(kKeepsBoth, type) ? NodeTypes::Output::keeps_both
                                    : NodeTypes::Output::may_be_in_place;
}

}  // namespace

NodeTypes& NodeTypes::instance() noexcept {
  static NodeTypes* const types = new NodeTypes;
  return *types;
}

__attribute__((noinline)) uint32_t NodeTypes::add(const char* mangled) noexcept {
  std::lock_guard lock(lock_);
  const uint32_t place = place_of(mangled);
  for (uint32_t i = 0; i < kProbes; ++i) {
    Place& probe = places_[(place + i) % kPlaces];
    const char* key = probe.key.load(std::memory_order_relaxed);
    if (key == mangled) return probe.number;
    if (key != nullptr) continue;
    const auto size = static_cast<uint32_t>(std::strlen(mangled)) + 1;
    if (count_ == kMaxTypes || size > kNameBytes - name_bytes_) return 0;
    char* const name = names_ + name_bytes_;
    std::memcpy(name, mangled, size);
    name_bytes_ += size;
    types_[++count_].mangled = name;
    types_[count_].output = output_of(name);
    if (noted_ != nullptr) note(count_);
    probe.number = count_;
    probe.key.store(mangled, std::memory_order_release);
    return count_;
  }
  return 0;
}

std::string NodeTypes::name(uint32_t number) const {
  if (number == 0) return {};
  const char* mangled = types_[number].mangled;
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  if (status == -1) throw std::bad_alloc();
  std::string name = demangled != nullptr ? demangled : mangled;
  std::free(demangled);
  const size_t end = name.find_first_of("<({");
  const size_t scope = name.rfind("::", end);
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

void NodeTypes::note(uint32_t number) noexcept {
  char row[1024] = {static_cast<char>(number & 0xff), static_cast<char>(number >> 8)};
  const size_t size = std::string_view(types_[number].mangled).copy(row + 2, sizeof(row) - 2);
  noted_->intern({row, size + 2});
}

void NodeTypes::note_in(InternTable* table) noexcept {
  std::lock_guard lock(lock_);
  noted_ = table;
  for (uint32_t i = 1; i <= count_ && table != nullptr; ++i) note(i);
}

void NodeTypes::reset_after_fork() noexcept {
  noted_ = nullptr;
  lock_.unlock();
}

}  // namespace pytracer
