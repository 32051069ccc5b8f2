#!/usr/bin/env bash
# Usage: test.sh [--quick] [PYTEST_ARGUMENT...]
# Sets everything up, then checks style and runs all tests. --quick leaves out the tests marked slow:
# they start several processes or take more than some seconds.
set -euo pipefail
selection=()
[[ "${1-}" == --quick ]] && { selection=(-m "not slow"); shift; }
bash "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cd "${REPO}"
# With a compiler the kernels were built, so none of their tests may be skipped.
command -v g++ > /dev/null && export TERNGRAD_KERNELS="${TERNGRAD_KERNELS-native}"
"${PYTHON}" -m ruff check .
"${PYTHON}" -m ruff format --check .
exec "${PYTHON}" -m pytest -n auto --maxprocesses 4 --dist worksteal \
  ${selection[@]+"${selection[@]}"} "$@" < /dev/null
