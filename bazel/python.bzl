"""A folder of Python modules as a Bazel package: a library, its programs and its tests."""

load("//bazel:rules.bzl", "py_binary", "py_library", "py_test")

def _check_layers(deps):
    """Fails if slim or terngrad depends on more than itself: visibility is too coarse for //slim,
    whose programs are made of inception's parts."""
    root = native.package_name().split("/")[0]
    for dep in deps:
        if root in ("slim", "terngrad") and not dep.startswith((":", "//" + root)):
            fail("//%s may not depend on %s" % (native.package_name(), dep))

def py_package(
        srcs = [],
        deps = [],
        data = [],
        without = [],
        programs = [],
        program_deps = [],
        testonly = False,
        visibility = None):
    """Makes a library, named after the folder, of all its modules, and a target for each program.

    Args:
      srcs: modules that a rule generates.
      deps: libraries that the modules import.
      data: files that the modules read.
      without: modules that the BUILD file gives a target of their own.
      programs: modules that users run; each becomes `name` from name.py and the library.
      program_deps: libraries that only the programs import.
      testonly: only tests may depend on the library.
      visibility: packages that may depend on the library and the programs.
    """
    name = native.package_name().split("/")[-1]
    excluded = ["*_test.py", "conftest.py"] + [program + ".py" for program in programs] + without
    _check_layers(deps)
    py_library(
        name = name,
        srcs = srcs + native.glob(["*.py"], exclude = excluded),
        data = data,
        deps = deps,
        testonly = testonly,
        visibility = visibility,
    )
    for program in programs:
        py_binary(
            name = program,
            srcs = [program + ".py"],
            deps = [":" + name] + program_deps,
            testonly = testonly,
            visibility = visibility,
        )

def py_tests(deps = [], data = [], whole_tree = [], tags = []):
    """Makes a test of each *_test.py of the folder, which runs it with pytest.

    Args:
      deps: libraries that the tests import, and programs that they start.
      data: files that the tests read.
      whole_tree: files of tests that look at all of the repository. They run in the source tree,
        each time: Bazel does not know what they depend on.
      tags: further tags.
    """
    fixtures = ["//:conftest"]
    if native.package_name() and native.glob(["conftest.py"]):
        py_library(
            name = "conftest",
            srcs = ["conftest.py"],
            testonly = True,
            deps = deps,
            visibility = ["//" + native.package_name() + ":__subpackages__"],
        )
        fixtures.append(":conftest")
    for source in native.glob(["*_test.py"]):
        in_tree = source in whole_tree
        py_test(
            name = source[:-len(".py")],
            size = "large",
            timeout = "eternal",  # only ends what hangs
            srcs = [source, "//bazel:pytest_main.py"],
            main = "//bazel:pytest_main.py",
            args = ["$(location %s)" % source] + (["--whole_tree"] if in_tree else []),
            data = data + ["//:pyproject.toml"],
            deps = deps + fixtures,
            tags = tags + (["external", "local"] if in_tree else []),
        )
