"""GPUs, their kernels, and why one cannot be used. The host plays the GPU, see conftest.py."""

import ctypes
import functools
from unittest import mock

import numpy as np
import pytest

from terngrad import numpy as arrays
from terngrad.gpu import bindings, device, kernels, nvrtc
from terngrad.ops import library
from terngrad.ops.library import UnavailableError
from terngrad.testing.gpu import STREAM


@pytest.fixture(autouse=True)
def code(monkeypatch):
    """No NVRTC is needed."""
    monkeypatch.setattr(kernels, "code", lambda capability: b"code")


def opened(driver):
    return device.device.__wrapped__(0, driver.path)


def test_a_gpu_is_opened_once_and_its_kernels_are_those_of_the_card(driver, monkeypatch):
    capabilities = []
    monkeypatch.setattr(kernels, "code", lambda each: capabilities.append(each) or b"code")
    retained, modules = driver["retained"], driver["modules"]
    with driver.setting(capability=86):
        one = device.device(0, driver.path)
        assert device.device(0, driver.path) is one
    assert capabilities == [86]
    assert driver["retained"] == retained + 1 and driver["modules"] == modules + 1
    assert driver["current"] == 0


def test_law_10_a_missing_driver_is_named(tmp_path):
    path = str(tmp_path / "libcuda.so.1")
    with pytest.raises(UnavailableError, match=f"^the NVIDIA driver cannot be loaded: {path}: "):
        device.device(0, path)


def test_law_10_a_driver_without_a_function_is_named():
    with pytest.raises(
        UnavailableError, match=r"^the NVIDIA driver is too old: libc.so.6 lacks cu"
    ):
        device.device(0, "libc.so.6")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"failing_cuInit": 100}, "the NVIDIA driver cannot start: CUDA error 100"),
        ({"failing_cuDeviceGet": 101}, "GPU 0: CUDA_ERROR_INVALID_DEVICE"),
        ({"failing_cuDevicePrimaryCtxRetain": 2}, "GPU 0: CUDA_ERROR_OUT_OF_MEMORY, out of memory"),
        *(
            (
                {"failing_cuModuleLoadData": status, "version": 12020},
                "GPU 0: the driver, of CUDA 12.2, cannot load the kernels; it may be older than "
                f"the NVRTC that compiled them: CUDA error {status}",
            )
            for status in (200, 209, 218, 222)
        ),
        (
            {"failing_cuModuleLoadData": 2},
            "GPU 0: the kernels cannot be loaded: CUDA_ERROR_OUT_OF_MEM",
        ),
    ],
)
def test_law_10_a_gpu_that_cannot_be_used_is_named_and_left(driver, setting, text):
    before = {name: driver[name] for name in ("retained", "current", "modules")}
    with driver.setting(**setting), pytest.raises(UnavailableError, match=f"^{text}"):
        opened(driver)
    assert {name: driver[name] for name in before} == before


def test_law_10_a_card_that_is_too_old_is_named_and_left(driver, monkeypatch):
    monkeypatch.undo()
    compiler = mock.Mock(spec=nvrtc.Nvrtc)
    compiler.target = functools.partial(nvrtc.Nvrtc.target, compiler)
    monkeypatch.setattr(nvrtc, "load", lambda: compiler)
    retained = driver["retained"]
    with (
        driver.setting(capability=61),
        pytest.raises(UnavailableError, match=r"^GPU 0: it has compute capability 6.1; the"),
    ):
        opened(driver)
    assert driver["retained"] == retained


def codes_and_scales(values, codec="5-level"):
    how = {"seed": 4, "step": 1, "node": 0, "codec": codec}
    scales = arrays.stats(values).max_abs
    return arrays.encode(values, scales, **how), scales


def bucket():
    rng = np.random.default_rng(5)
    return [rng.normal(size=size).astype(np.float32) for size in (700, 33, 5000)]


def pointer(array):
    return array.ctypes.data


def launch(driver, name, items, *arguments):
    """Launches kernels with a table, which is one of the arguments."""
    scratch = np.empty(bindings.scratch_bytes(items), np.uint8)
    opened(driver).call(name, *arguments, pointer(scratch), STREAM)


def test_law_9_what_is_kept_is_the_rounding_error_of_the_codes(driver):
    values = bucket()
    words, scales = codes_and_scales(values)
    kept = [np.empty_like(each) for each in values]
    items = (bindings.Kept * 3)(
        *(
            bindings.Kept(
                values=pointer(each),
                residuals=pointer(rest),
                size=each.size,
                parts=(1, 1, 0),
                scales=pointer(scales[i:]),
            )
            for i, (each, rest) in enumerate(zip(values, kept, strict=True))
        )
    )
    sums, units = library.Planes(pointer(words), words.shape[1]), bindings.UnitRule(0.5, 1)
    arguments = ctypes.byref(sums), items, 3, ctypes.byref(units), len(words)
    launch(driver, "subtract", items, *arguments)
    sent = arrays.decode(words, scales, 1, [each.shape for each in values], codec="5-level")
    for each, rest, own in zip(values, kept, sent, strict=True):
        np.testing.assert_array_equal(rest, each - own)
    assert driver["stream"] == STREAM


def test_law_9_corrected_gradients_are_the_sums_with_what_was_kept(driver):
    values, kept = bucket(), [each[::-1].copy() for each in bucket()]
    halves = [each.astype(np.float16) for each in values]
    for given in (values, halves):
        sums = [np.empty_like(each) for each in values]
        items = (bindings.Corrected * 3)(
            *(
                bindings.Corrected(
                    values=pointer(each),
                    memory=pointer(memory),
                    sums=pointer(total),
                    size=each.size,
                    type=bindings.VALUE_TYPES[each.dtype.name],
                )
                for each, memory, total in zip(given, kept, sums, strict=True)
            )
        )
        rows = -(-sum(each.size for each in values) // 32)
        launch(driver, "correct", items, items, 3, rows)
        for each, memory, total in zip(given, kept, sums, strict=True):
            np.testing.assert_array_equal(total, each.astype(np.float32) + memory)


def changed(rule, update, mean, weights, slots):
    """What a rule makes of weights and slots, each operation rounded; see kernels.h."""
    rate, momentum, mean_share, square_share, epsilon = map(np.float32, update)
    one, two = slots
    if rule == "momentum":
        one = one * momentum + mean
        return weights - one * rate, [one, two]
    if rule in ("keras_momentum", "nesterov"):
        one = one * momentum - mean * rate
        change = one * momentum - mean * rate if rule == "nesterov" else one
        return weights + change, [one, two]
    if rule == "adam":
        one = one + (mean - one) * mean_share
        two = two + (mean * mean - two) * square_share
        return weights - one * rate / (np.sqrt(two) + epsilon), [one, two]
    one = one + (mean * mean - one) * square_share
    two = two * momentum + mean * rate / np.sqrt(one + epsilon)
    return weights - two, [one, two]


@pytest.mark.parametrize("rule", library.RULES)
def test_updates_are_those_of_the_rules(driver, rule):
    values, rng = bucket(), np.random.default_rng(6)
    words, scales = codes_and_scales(values)
    weights, *slots, averages = (
        [np.abs(rng.normal(size=each.size)).astype(np.float32) for each in values] for _ in range(4)
    )
    numbers = (0.1, 0.9, 0.1, 0.01, 1e-7)
    means = arrays.decode(words, scales, 1, [each.shape for each in values], codec="5-level")
    expected = [
        changed(rule, numbers, *each)
        for each in zip(means, weights, zip(*slots, strict=True), strict=True)
    ]
    gain = np.float32(0.25)
    blended = [
        (old + new * gain) / (1 + gain) for old, (new, _) in zip(averages, expected, strict=True)
    ]
    items = (bindings.Trained * 3)(
        *(
            bindings.Trained(
                weights=pointer(weights[i]),
                slots=(pointer(slots[0][i]), pointer(slots[1][i])),
                averages=pointer(averages[i]) if i != 1 else None,
                size=values[i].size,
                parts=(1, 1, 0),
                scales=pointer(scales[i:]),
            )
            for i in range(3)
        )
    )
    sums, units = library.Planes(pointer(words), words.shape[1]), bindings.UnitRule(0.5, 1)
    update = library.Update(library.RULES.index(rule), *numbers, gain)
    arguments = ctypes.byref(sums), items, 3, ctypes.byref(update), ctypes.byref(units)
    launch(driver, "update", items, *arguments, len(words))
    for i, (new, (one, two)) in enumerate(expected):
        np.testing.assert_array_equal(weights[i], new)
        np.testing.assert_array_equal(slots[0][i], one)
        np.testing.assert_array_equal(slots[1][i], two)
        if i != 1:
            np.testing.assert_array_equal(averages[i], blended[i])


def test_law_10_an_encoder_that_is_unknown_is_named(driver):
    key = library.NodeKey(1, 0, 0, False)
    arguments = b"9-level", None, 0, ctypes.byref(key), 0, None, None, STREAM
    with pytest.raises(device.LaunchError, match=r"^there is no encoder 9-level$"):
        opened(driver).call("encode", *arguments)
