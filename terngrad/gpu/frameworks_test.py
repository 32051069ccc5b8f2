"""What is asked of PyTorch and CuPy. Stand-ins of them hold arrays of NumPy."""

import sys
import types

import numpy as np
import pytest

from terngrad.gpu import frameworks
from terngrad.gpu.frameworks import framework_of

DEVICES = []  # in which something was done, one after the other


class Tensor:
    """As that of PyTorch."""

    __module__ = "torch"

    def __init__(self, values, device=1, is_cuda=True):
        self.values = values
        self.device = types.SimpleNamespace(index=device)
        self.is_cuda = is_cuda
        self.shape = values.shape
        self.dtype = DType(values.dtype.name)

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("it requires a gradient")

    def detach(self):
        return self

    def contiguous(self):
        return Tensor(np.ascontiguousarray(self.values), self.device.index)

    def data_ptr(self):
        return self.values.ctypes.data


class DType:
    """As torch.dtype."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"torch.{self.name}"


def torch_of():
    found = types.ModuleType("torch")
    found.Tensor = Tensor
    found.uint32, found.float32 = DType("uint32"), DType("float32")
    found.device = lambda kind, index: (kind, index)
    found.empty = lambda shape, dtype, device: (shape, str(dtype), device)
    stream = types.SimpleNamespace(cuda_stream=5)
    found.cuda = types.SimpleNamespace(current_stream=lambda device: stream)
    return found


class CupyArray:
    """As cupy.ndarray."""

    __module__ = "cupy"
    __cuda_array_interface__ = property(lambda self: {})

    def __init__(self, values, device=1):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.flags, self.data = values.flags, types.SimpleNamespace(ptr=values.ctypes.data)
        self.device = Device(device)


class Device:
    """As cupy.cuda.Device."""

    def __init__(self, index):
        self.id = index

    def __enter__(self):
        DEVICES.append(self.id)

    def __exit__(self, *error):
        pass


def cupy_of():
    found = types.ModuleType("cupy")
    found.ndarray = CupyArray
    found.ascontiguousarray = lambda array: CupyArray(np.ascontiguousarray(array.values))
    found.empty = lambda shape, dtype: (shape, dtype)
    stream = types.SimpleNamespace(ptr=6)
    found.cuda = types.SimpleNamespace(Device=Device, get_current_stream=lambda: stream)
    return found


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """Both packages are there."""
    monkeypatch.setitem(sys.modules, "torch", torch_of())
    monkeypatch.setitem(sys.modules, "cupy", cupy_of())
    DEVICES.clear()


def test_tensors_of_pytorch_are_read_without_their_interface(monkeypatch):
    values = np.ones((3, 4), np.float32)
    tensor = Tensor(values)
    monkeypatch.setattr(Tensor, "contiguous", lambda self: self)
    torch = framework_of(tensor)
    assert torch.name == "PyTorch"
    assert torch.view(tensor)[1:] == (values.ctypes.data, (3, 4), "float32")
    assert torch.view(tensor).size == 12
    assert torch.device_of(tensor) == 1
    assert torch.is_here(tensor, 1) and not torch.is_here(tensor, 0)
    assert torch.empty([2], "uint32", 1) == ((2,), "torch.uint32", ("cuda", 1))
    assert torch.stream(1) == 5


def test_parameters_and_subclasses_are_tensors():
    parameter = type("Parameter", (Tensor,), {"__module__": "a_library.of_layers"})
    assert framework_of(parameter(np.ones(3))).name == "PyTorch"


def test_a_tensor_on_the_host_is_on_no_gpu():
    assert framework_of(Tensor(np.ones(3), is_cuda=False)) is None


def test_arrays_of_cupy_are_read_and_made_on_their_device():
    values = np.ones((3, 4), np.float16)
    cupy = framework_of(CupyArray(values))
    assert cupy.name == "CuPy"
    assert cupy.view(CupyArray(values))[1:] == (values.ctypes.data, (3, 4), "float16")
    assert cupy.is_here(CupyArray(values), 1) and not cupy.is_here(CupyArray(values), 0)
    assert DEVICES == []
    turned = cupy.view(CupyArray(values.T))
    assert turned.shape == (4, 3) and turned.owner.values.flags.c_contiguous
    assert cupy.empty([2], "uint32", 3) == ((2,), "uint32")
    assert cupy.stream(4) == 6
    assert DEVICES == [1, 3, 4]


@pytest.mark.parametrize("value", [np.ones(3), [1.0], 3, None])
def test_what_is_no_array_on_a_gpu_has_no_framework(value):
    assert framework_of(value) is None


def test_neither_package_is_imported():
    assert not {"torch", "cupy"} & set(vars(frameworks))
