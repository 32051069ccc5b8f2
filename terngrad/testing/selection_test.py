"""With --no-skips a run that skipped a test fails and says what is missing."""

import pytest

pytest_plugins = ["pytester"]

_CONFTEST = """
from terngrad.testing.selection import add_option as pytest_addoption
from terngrad.testing.selection import fail_on_skips as pytest_sessionfinish
"""
_TESTS = {
    "a test": "import pytest\n\n\ndef test_one():\n    pytest.skip('no such tool')\n",
    "a module": "import pytest\n\npytest.skip('no such tool', allow_module_level=True)\n",
    "none": "def test_one():\n    pass\n",
}


@pytest.mark.parametrize("skipped", _TESTS)
def test_a_run_that_skips_fails_and_names_what_is_missing(pytester, skipped):
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(test_some=_TESTS[skipped], test_other=_TESTS["none"])
    strict = pytester.runpytest_inprocess("--no-skips", "-ra")
    assert strict.ret == (pytest.ExitCode.OK if skipped == "none" else pytest.ExitCode.TESTS_FAILED)
    if skipped != "none":
        strict.stdout.fnmatch_lines(["--no-skips: 1 tests were skipped*", "SKIPPED*no such tool"])
    assert pytester.runpytest_inprocess("-ra").ret == pytest.ExitCode.OK
