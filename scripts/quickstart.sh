#!/usr/bin/env bash
# Usage: quickstart.sh [FLAG...]
# Sets everything up, then trains LeNet on real digits with float and with ternary gradients.
set -euo pipefail
bash "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec "${PYTHON}" -m inception.quickstart "$@"
