# shellcheck shell=bash
# Sourced by run_single_worker_*.sh after their settings: runs a worker.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/single_process.sh"
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

(($# == 7)) \
  || die "needs PS_HOSTS WORKER_HOSTS JOB_NAME TASK_ID DEVICE DATA_DIR EXPERIMENT_ID, got $# arguments"
take_part "$1" "$2" "$3" worker "$4" "$7"
[[ -d "$6" ]] || die "no such folder: $6"
read -d '' -ra more_flags <<< "${WORKER_FLAGS}" || true # which may have several lines

export CUDA_VISIBLE_DEVICES="$5"
exec "${PROGRAM[@]}" \
  --data_dir "$6" \
  --train_dir "${ROOT_WORKSPACE}/${DATASET_NAME}_training_data/$7_worker_$4" \
  --split_data="${SPLIT_DATA}" \
  "${RECIPE[@]}" \
  "${more_flags[@]}"
