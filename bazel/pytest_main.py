"""Runs pytest on one file, as a Bazel test (see bazel/python.bzl).

pytest_main.py FILE [--whole_tree]

--whole_tree runs the test in the source tree instead of the folder of its declared files.
"""

import os
import sys

import pytest

_FLAG = "--whole_tree"


def main() -> int:
    """Runs pytest in the folder of the test's declared files, or in the source tree."""
    arguments = [word for word in sys.argv[1:] if word != _FLAG]
    if _FLAG in sys.argv:
        declared, tree = os.getcwd(), os.path.dirname(os.path.realpath("pyproject.toml"))
        os.chdir(tree)
        sys.path = [tree, *(path for path in sys.path if not path.startswith(declared))]
        os.environ["PYTHONPATH"] = tree
    if "TEST_TMPDIR" in os.environ:  # Bazel sets no HOME; programs expect one
        os.environ.setdefault("HOME", os.environ["TEST_TMPDIR"])
    if "XML_OUTPUT_FILE" in os.environ:
        arguments.append(f"--junitxml={os.environ['XML_OUTPUT_FILE']}")
    if wanted := os.environ.get("TESTBRIDGE_TEST_ONLY"):  # bazel test --test_filter
        arguments.append(f"-k={wanted}")
    status = pytest.main(["--config-file=pyproject.toml", "-p", "no:cacheprovider", *arguments])
    # A selection that is meant for many files may match no test in this one.
    has_selection = "PYTEST_ADDOPTS" in os.environ or wanted
    return 0 if has_selection and status == pytest.ExitCode.NO_TESTS_COLLECTED else status


if __name__ == "__main__":
    sys.exit(main())
