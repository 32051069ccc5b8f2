#!/usr/bin/env bash
# Usage: run_single_ps_cifar10.sh PS_HOSTS WORKER_HOSTS ps TASK_ID EXPERIMENT_ID
#   run_single_ps_cifar10.sh hosta:2222 hosta:2224,hostb:2224 ps 0 try1
# One parameter server of a training on CIFAR-10.
# Each setting can be given in the environment; run_dist.sh hands them on.

DATASET_NAME=cifar10
: "${ROOT_WORKSPACE:=${HOME}/tmp}" # figures for TensorBoard, and snapshots
: "${PS_FLAGS:=}" # further flags, divided by spaces: --cross_replica_sync=False

source "$(dirname "${BASH_SOURCE[0]}")/single_ps.sh"
