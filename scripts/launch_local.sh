#!/usr/bin/env bash
# Usage: launch_local.sh [--max_restarts=N] [--ps=N] WORKERS PROGRAM FLAG...
#   launch_local.sh 2 inception.mnist_distributed_train --data_dir=/tmp/mnist --grad_bits=1
# Starts all workers of a distributed training on this machine, with their lines side by side.
# Ctrl-C lets all save and end, a second one kills them. The exit status is the first failure's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec "${PYTHON}" -m inception.launch "$@"
