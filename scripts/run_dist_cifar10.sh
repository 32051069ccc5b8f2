#!/usr/bin/env bash
# Usage: run_dist_cifar10.sh
# A small example: one parameter server and two workers train the paper's CIFAR-10 net on this machine
# and print their lines together. Ctrl-C lets all save and end. Exits with the status of the first
# failure. Set PS_HOSTS, WORKER_HOSTS, WORKER_DEVICES, DATA_DIR, EXPERIMENT_ID (see config_dist.sh), or
# settings of run_single_worker_cifarnet.sh, in the environment.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

export DATA_DIR="${DATA_DIR:-${HOME}/dataset/cifar10-data}"
export MAX_STEPS="${MAX_STEPS:-1000}"
mapfile -d , -t folders < <(printf %s "${DATA_DIR}")
for folder in "${folders[@]}"; do
  folder="${folder/#\~\//${HOME}/}"
  require_records "${folder}" train \
    "slim.download_and_convert_data --dataset_name cifar10 --dataset_dir '${folder}'"
done
DIST_CONFIG=
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"
