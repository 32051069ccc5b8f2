#!/usr/bin/env bash
# Usage: build_all.sh [BAZEL_ARGUMENT...]
# Builds all programs, libraries, native kernels and tests with Bazel into bazel-bin/. Installs Bazel
# where it is missing (Debian and Ubuntu, as root).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

bash "${REPO}/scripts/setup.sh"
prepare_bazel
cd "${REPO}"
bazel build "$@" //...
echo "The programs are in bazel-bin/ and use the first python3 on PATH, which must find TensorFlow:"
echo "  source ${VENV}/bin/activate"
