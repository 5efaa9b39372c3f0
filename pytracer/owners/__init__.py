"""The owners of live memory: parameters, gradients, buffers, optimizers' states, and cuBLAS."""
