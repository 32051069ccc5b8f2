# shellcheck shell=bash
# Sourced by run_single_ps_*.sh after their settings: runs a parameter server.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/single_process.sh"

(($# == 5)) || die "needs PS_HOSTS WORKER_HOSTS JOB_NAME TASK_ID EXPERIMENT_ID, got $# arguments"
take_part "$1" "$2" "$3" ps "$4" "$5"
read -d '' -ra more_flags <<< "${PS_FLAGS}" || true # which may have several lines

export CUDA_VISIBLE_DEVICES=-1 # a server computes on the CPU
exec "${PROGRAM[@]}" \
  --train_dir "${ROOT_WORKSPACE}/${DATASET_NAME}_training_data/$5_ps_$4" \
  "${more_flags[@]}"
