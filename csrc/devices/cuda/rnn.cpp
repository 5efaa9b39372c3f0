// libcudnn.so.9: recurrent networks. The weights have cuDNN's layout and size: the matrices of all
// layers, then their biases. The sizes of workspaces and of what backward keeps are not known here.
#include <cstddef>
#include <cstdint>

#include "devices/control.h"
#include "types.h"

using namespace simulated::cuda;

namespace {

constexpr int kMostDimensions = 8;

struct Tensor {
  int type, dimensions;
  int sizes[kMostDimensions], strides[kMostDimensions];
};

// cudnnRNNMode_t, cudnnRNNBiasMode_t.
enum Cell { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };
enum Bias { kNoBias = 0, kBothBiases = 2 };

struct Network {
  int cell, bias, directions, type, inputs, hidden, projected, layers;

  int gates() const { return cell == kLstm ? 4 : cell == kGru ? 3 : 1; }
  int outputs() const { return projected < hidden ? projected : hidden; }
  // The matrices of a layer: those of the input, of the state, and of the projection.
  int matrices() const { return 2 * gates() + (outputs() < hidden ? 1 : 0); }
  int pseudo_layers() const { return layers * directions; }
  int biases() const { return bias == kNoBias ? 0 : bias == kBothBiases ? 2 * gates() : gates(); }

  int64_t rows(int matrix) const { return matrix < 2 * gates() ? hidden : outputs(); }
  int64_t columns(int layer, int matrix) const {
    if (matrix >= 2 * gates()) return hidden;
    if (matrix >= gates()) return outputs();
    return layer < directions ? inputs : int64_t{outputs()} * directions;
  }

  // The elements before a matrix; of all matrices with `layer` after the last one.
  int64_t matrix_offset(int layer, int matrix) const {
    int64_t elements = 0;
    for (int each = 0; each < layer; ++each) {
      for (int other = 0; other < matrices(); ++other) {
        elements += rows(other) * columns(each, other);
      }
    }
    for (int other = 0; other < matrix; ++other) elements += rows(other) * columns(layer, other);
    return elements;
  }
  int64_t bias_offset(int layer, int number) const {
    return matrix_offset(pseudo_layers(), 0) + (int64_t{layer} * biases() + number) * hidden;
  }

  // cudnnDataType_t.
  size_t element_bytes() const { return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4; }
};

// Callers leave out what they do not ask for.
void answer(Tensor* tensor, void** start, char* address, int type, int64_t rows, int64_t columns) {
  const int wide = static_cast<int>(columns);
  const int high = static_cast<int>(rows);
  if (start != nullptr) *start = address;
  if (tensor != nullptr) *tensor = {type, 3, {1, high, wide}, {high * wide, wide, 1}};
}

}  // namespace

extern "C" {

int cudnnCreateTensorDescriptor(void** tensor) {
  *tensor = new Tensor{};
  return kSuccess;
}

int cudnnDestroyTensorDescriptor(Tensor* tensor) {
  delete tensor;
  return kSuccess;
}

int cudnnSetTensorNdDescriptor(Tensor* tensor, int type, int dimensions, const int* sizes,
                               const int* strides) {
  if (dimensions > kMostDimensions) return kNotSupported;
  *tensor = {type, dimensions, {}, {}};
  for (int each = 0; each < dimensions; ++each) {
    tensor->sizes[each] = sizes[each];
    tensor->strides[each] = strides[each];
  }
  return kSuccess;
}

int cudnnGetTensorNdDescriptor(const Tensor* tensor, int space, int* type, int* dimensions,
                               int* sizes, int* strides) {
  *type = tensor->type;
  *dimensions = tensor->dimensions;
  for (int each = 0; each < tensor->dimensions && each < space; ++each) {
    sizes[each] = tensor->sizes[each];
    strides[each] = tensor->strides[each];
  }
  return kSuccess;
}

int cudnnCreateRNNDescriptor(void** network) {
  *network = new Network{};
  return kSuccess;
}

int cudnnDestroyRNNDescriptor(Network* network) {
  delete network;
  return kSuccess;
}

int cudnnSetRNNDescriptor_v8(Network* network, int, int cell, int bias, int direction, int,
                             int type, int, int, int inputs, int hidden, int projected, int layers,
                             void*, unsigned) {
  *network = {cell, bias, direction + 1, type, inputs, hidden, projected, layers};
  return kSuccess;
}

int cudnnGetRNNWeightSpaceSize(void*, const Network* network, size_t* bytes) {
  *bytes = network->bias_offset(network->pseudo_layers(), 0) * network->element_bytes();
  return kSuccess;
}

int cudnnGetRNNWeightParams(void*, const Network* network, int layer, size_t, char* weights,
                            int number, Tensor* matrix, void** matrix_start, Tensor* bias,
                            void** bias_start) {
  const auto at = [&](int64_t element) { return weights + element * network->element_bytes(); };
  answer(matrix, matrix_start, at(network->matrix_offset(layer, number)), network->type,
         network->rows(number), network->columns(layer, number));
  const bool has_bias = number < network->biases();
  answer(bias, bias_start, has_bias ? at(network->bias_offset(layer, number)) : nullptr,
         network->type, has_bias ? network->hidden : 0, 1);
  return kSuccess;
}

int cudnnGetRNNTempSpaceSizes(void*, const Network*, int, void*, size_t* work, size_t* reserved) {
  count(simulated::Counter::unknown_workspaces);
  if (work != nullptr) *work = 0;
  if (reserved != nullptr) *reserved = 0;
  return kSuccess;
}

int cudnnDropoutGetStatesSize(void*, size_t* bytes) {
  count(simulated::Counter::unknown_workspaces);
  *bytes = 0;
  return kSuccess;
}

}  // extern "C"
