"""The compiler's flags for the native kernels: those of terngrad/ops/build.py."""

FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",  # roots without a call
    "-fvisibility=hidden",
    "-DNDEBUG",
    "-w",
]

_X86 = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mbmi", "-mbmi2"],
    "avx2": ["-mavx2", "-mbmi", "-mbmi2"],
    "portable": [],
}

FLAGS_OF_PATH = {
    path: select({
        "@bazel_tools//src/conditions:linux_x86_64": flags,
        "//conditions:default": [],
    })
    for path, flags in _X86.items()
}
