#!/usr/bin/env bash
# Usage: launch_local.sh [--max_restarts=N] [--ps=N] WORKERS PROGRAM FLAG...
#   launch_local.sh 2 inception.mnist_distributed_train --data_dir=/tmp/mnist --grad_bits=1
# Starts all workers of a distributed training on this machine and prints their lines together.
# Ctrl-C lets all save and end; a second Ctrl-C kills them. Exits with the status of the first failure.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec "${PYTHON}" -m inception.launch "$@"
