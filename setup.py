"""Packaging. TensorFlow's CPU and GPU wheels differ in name: choose the extra cpu or gpu."""

import setuptools

TENSORFLOW = "~=2.21.0"

setuptools.setup(
    name="terngrad",
    version="2.0.0",
    description="Trains image classifiers whose workers exchange ternary gradients",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=setuptools.find_packages(include=["slim*", "terngrad*", "inception*"]),
    package_data={"slim.datasets": ["mnist_sample/*"]},
    install_requires=[
        "absl-py>=2.1",
        "grpcio>=1.74,<2",
        "matplotlib>=3.8,<4",
        "numpy>=1.26,<3",
        "protobuf>=6.31.1,<8",
        "rich>=13,<16",
        "tensorboard~=2.21.0",
    ],
    extras_require={
        "cpu": [f"tensorflow-cpu{TENSORFLOW}"],
        "gpu": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        "dev": [
            "hypothesis>=6.100,<7",
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.5,<4",
            "ruff~=0.17.5",
        ],
    },
)
