#!/usr/bin/env bash
# Usage: test.sh [--quick | --all] [PYTEST_ARGUMENT...]
#        test.sh --bazel [TARGET...]
# Sets everything up, then checks style and runs the tests, except those marked exhaustive.
# --quick also leaves out the tests marked slow: they start several processes or take more than some
# seconds. --all runs all, and all with Bazel unless there are arguments. It first installs what they
# need (Debian and Ubuntu, as root), and fails if a test is skipped all the same.
# --bazel runs the tests of the targets (all tests) with Bazel, except those marked exhaustive.
set -euo pipefail
scripts="$(dirname "${BASH_SOURCE[0]}")"

test_with_bazel() {
  prepare_bazel
  cd "${REPO}"
  bazel test --test_env=PYTEST_ADDOPTS="${PYTEST_ADDOPTS--m 'not exhaustive'}" "${@-//...}"
}

mode="${1-}"
case "${mode}" in
  --quick) selection=(-m "not slow and not exhaustive") ;;
  --all) selection=(--no-skips) ;;
  --bazel) ;;
  *) mode="" selection=(-m "not exhaustive") ;;
esac
[[ -z "${mode}" ]] || shift
[[ "${mode}" != --all ]] || bash "${scripts}/install_test_tools.sh" --all
bash "${scripts}/setup.sh" dev
source "${scripts}/common.sh"
if [[ "${mode}" == --bazel ]]; then
  test_with_bazel "$@"
  exit
fi
[[ "${mode}" != --all ]] || bash "${scripts}/install_horovod.sh"

cd "${REPO}"
# With a compiler the kernels were built, so none of their tests may be skipped.
command -v g++ > /dev/null && export TERNGRAD_KERNELS="${TERNGRAD_KERNELS-native}"
"${PYTHON}" -m ruff check .
"${PYTHON}" -m ruff format --check .
# The oldest Python of setup.py; decode is not that of a text where vermin finds it.
"${VENV}/bin/vermin" --target=3.10- --no-tips --quiet --violations --exclude str.decode \
  ./*.py bazel benchmarks deploy docs examples inception scripts slim terngrad
"${PYTHON}" -m pytest -n auto --maxprocesses 4 --dist worksteal "${selection[@]}" "$@" < /dev/null
[[ "${mode}" != --all || $# -gt 0 ]] || test_with_bazel
