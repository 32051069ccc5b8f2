#!/usr/bin/env bash
# Usage: run_single_ps_imagenet.sh PS_HOSTS WORKER_HOSTS ps TASK_ID EXPERIMENT_ID
#   run_single_ps_imagenet.sh hosta:2222 hosta:2224,hostb:2224 ps 0 try1
# Runs one parameter server of a training on ImageNet.
# Set any setting in the environment; run_dist.sh passes the settings on.

: "${DATASET_NAME:=imagenet}" # any registered data set; other settings must fit it
: "${ROOT_WORKSPACE:=${HOME}/tmp}" # figures for TensorBoard, and snapshots
: "${PS_FLAGS:=}" # more flags, separated by spaces: --cross_replica_sync=False

source "$(dirname "${BASH_SOURCE[0]}")/single_ps.sh"
