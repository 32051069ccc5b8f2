#!/usr/bin/env bash
# Usage: test.sh [--quick | --all] [PYTEST_ARGUMENT...]
#        test.sh --bazel [TARGET...]
# Sets everything up, then checks style and runs the tests. --quick leaves out the tests marked slow:
# they start several processes or take more than some seconds. --all also runs those marked exhaustive.
# --bazel builds all with Bazel and runs the tests of the targets (all tests) with it.
set -euo pipefail
scripts="$(dirname "${BASH_SOURCE[0]}")"
if [[ "${1-}" == --bazel ]]; then
  shift
  bash "${scripts}/setup.sh" dev
  bash "${scripts}/build_all.sh"
  source "${scripts}/common.sh"
  prepare_bazel
  cd "${REPO}"
  exec bazel test "${@-//...}"
fi
selection=(-m "not exhaustive")
case "${1-}" in
  --quick) selection=(-m "not slow and not exhaustive"); shift ;;
  --all) selection=(); shift ;;
esac
bash "${scripts}/setup.sh" dev
source "${scripts}/common.sh"

cd "${REPO}"
# With a compiler the kernels were built, so none of their tests may be skipped.
command -v g++ > /dev/null && export TERNGRAD_KERNELS="${TERNGRAD_KERNELS-native}"
"${PYTHON}" -m ruff check .
"${PYTHON}" -m ruff format --check .
exec "${PYTHON}" -m pytest -n auto --maxprocesses 4 --dist worksteal \
  ${selection[@]+"${selection[@]}"} "$@" < /dev/null
