"""The parts of benchmarks.gpu_check. Nothing here loads TensorFlow."""
