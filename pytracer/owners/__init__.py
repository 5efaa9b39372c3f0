"""The owners of live memory: parameters, gradients, buffers and optimizers' states."""
