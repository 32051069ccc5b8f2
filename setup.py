"""Packaging. TensorFlow's CPU and GPU wheels differ in name: choose the extra cpu or gpu.

The build compiles the native kernels. They need the installed TensorFlow, or else one that pip
fetches for the build. Without a compiler, or with TERNGRAD_WITHOUT_KERNELS=1, the package has no
kernels and computes with TensorFlow's operations.
"""

import os
import pathlib
import sys

import setuptools
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import terngrad
from inception import console
from terngrad.ops import build, library

TENSORFLOW = "~=2.21.0"
TENSORFLOW_CPU = [  # tensorflow-cpu exists for x86 only; elsewhere tensorflow has no GPU part
    f"tensorflow-cpu{TENSORFLOW}; platform_machine == 'x86_64'",
    f"tensorflow{TENSORFLOW}; platform_machine != 'x86_64'",
]
SWEEP = ["optuna>=4.5,<6"]  # chooses the trials of inception.sweep and keeps their results
# Executors as places for trials and clusters, which get rows as Arrow batches. It needs Java 17.
SPARK = ["pyspark[sql]>=4.1,<5", "pandas<3"]
# What scripts/build_docs.sh needs: MyST reads the guides, terngrad.spark imports pyarrow.
DOCS = ["myst-parser>=4,<6", "pyarrow>=18", "sphinx>=8.1,<10"]
MPI = ["mpi4py>=4,<5", "mpich>=4.3,<6"]


class BuildKernels(build_ext):
    """Compiles the kernels as `python -m terngrad.ops.build` does."""

    def get_ext_filename(self, fullname: str) -> str:
        """Path of the library; `fullname` with or without the package, as setuptools asks."""
        folder = os.path.join("", *fullname.split(".")[:-1])
        return library.path_for(build.tensorflow()[0], folder)

    def build_extension(self, ext: setuptools.Extension) -> None:
        """Compiles into the build's folder, or in place for an editable installation."""
        folder = os.path.dirname(os.path.abspath(self.get_ext_fullpath(ext.name)))
        os.makedirs(folder, exist_ok=True)
        try:
            build.build(folder)
        except build.BuildError as error:  # optional: the package works without
            raise CompileError(str(error)) from error


def with_kernels() -> bool:
    """Whether there is a compiler, and its use is not turned off."""
    return bool(build.compiler()) and os.environ.get("TERNGRAD_WITHOUT_KERNELS", "0") in ("", "0")


def build_requirements() -> list[str]:
    """TensorFlow's headers and flags, if they are not installed and kernels are compiled."""
    if not with_kernels():
        return []
    try:
        version, *_ = build.tensorflow()
        fits = version.startswith(TENSORFLOW[2:6])
    except build.BuildError:
        fits = False
    return [] if fits else [*TENSORFLOW_CPU]


setuptools.setup(
    name="terngrad",
    version=terngrad.__version__,
    description="Trains image classifiers whose workers exchange ternary gradients",
    long_description=pathlib.Path(__file__).with_name("README.md").read_text(),
    long_description_content_type="text/markdown",
    author="The TernGrad authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["distributed training", "gradient compression", "TensorFlow", "TernGrad"],
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.10,<3.14",
    packages=setuptools.find_packages(include=["slim*", "terngrad*", "inception*"]),
    package_data={
        "inception.cluster": ["network.sh"],
        "slim.datasets": ["imagenet_synsets.txt", "mnist_sample/*"],
        # Another TensorFlow needs the sources compiled again.
        "terngrad": ["cc/*/*.h", "cc/*/*/*.h", "cc/*/*.cc", "cc/*/*.cu", "py.typed"],
    },
    exclude_package_data={"terngrad": ["cc/*/*_test.*", "cc/*/testing/*"]},
    ext_modules=[setuptools.Extension("terngrad.ops.kernels", [], optional=True)]
    if with_kernels()
    else [],
    entry_points={
        "console_scripts": [
            f"{console.command_of(m)} = inception.console:run" for m in console.MODULES
        ]
    },
    cmdclass={"build_ext": BuildKernels},
    setup_requires=build_requirements(),
    install_requires=[
        "absl-py>=2.1",
        "h5py>=3.11,<4",  # reads weight files of Keras, which brings it
        "matplotlib>=3.8,<4",
        "numpy>=1.26,<3",
        "pillow>=11.1,<14",
        "protobuf>=6.31.1,<8",
        "rich>=13,<16",
        "tensorboard~=2.21.0",
    ],
    extras_require={
        "cpu": TENSORFLOW_CPU,
        "gpu": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        "mpi": MPI,  # there is none for Horovod: scripts/install_horovod.sh builds it
        "docs": DOCS,
        "sweep": SWEEP,
        "spark": SPARK,
        "dev": [
            *DOCS,
            *MPI,
            *SPARK,
            *SWEEP,
            "clang-format~=23.1.5",
            "hypothesis>=6.100,<7",
            "kubernetes-validate>=1.29,<2",  # the schemas of Kubernetes, with jsonschema and PyYAML
            "nvidia-cuda-nvrtc-cu12>=12.8,<13",  # compiles GPU kernels in tests, which need no GPU
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.5,<4",
            "ruff~=0.17.5",
            "setproctitle~=1.3",
            "vermin~=1.6",  # names what the oldest Python lacks, which ruff does not know
        ],
    },
)
