"""Long tests begin early on each worker."""

from types import SimpleNamespace

from terngrad.testing import order


def _test(module: str, is_slow: bool) -> SimpleNamespace:
    return SimpleNamespace(path=module, get_closest_marker=lambda name: is_slow and name == "slow")


def test_each_workers_stretch_begins_with_slow_modules_and_keeps_modules_whole():
    slow = ("b", "d")
    tests = [_test(module, module in slow and i == 1) for module in "abcdef" for i in range(2)]
    order.slow_first(tests, workers=2)
    assert "".join(test.path for test in tests) == "bbaaee" + "ddccff"
