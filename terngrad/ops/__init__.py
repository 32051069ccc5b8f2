"""The codec's arithmetic: the reference in TensorFlow operations, and native kernels."""
