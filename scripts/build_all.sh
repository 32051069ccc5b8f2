#!/usr/bin/env bash
# Usage: build_all.sh [BAZEL_ARGUMENT...]
# Builds all programs with Bazel into bazel-bin/.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

command -v bazel > /dev/null \
  || die "needs Bazel; on Debian or Ubuntu: sudo apt-get install -y bazel-bootstrap"
cd "${REPO}"
"${PYTHON}" -m terngrad.service.build --if-needed
bazel build "$@" //...
echo "The programs are in bazel-bin/ and use the first python3 on PATH, which must find TensorFlow."
