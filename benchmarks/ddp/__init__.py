"""PyTorch's DDP, beside which benchmarks measure the suite."""
