# shellcheck shell=bash
# Sourced by run_single_worker_*.sh after their settings: runs a worker.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/single_process.sh"

(($# == 7)) \
  || die "needs PS_HOSTS WORKER_HOSTS JOB_NAME TASK_ID DEVICE DATA_DIR EXPERIMENT_ID, got $# arguments"
take_part "$1" "$2" "$3" worker "$4" "$7"
[[ -d "$6" ]] || die "no such folder: $6"
read -ra more_flags <<< "${WORKER_FLAGS}"

export CUDA_VISIBLE_DEVICES="$5"
exec "${PROGRAM[@]}" \
  --data_dir "$6" \
  --train_dir "${ROOT_WORKSPACE}/${DATASET_NAME}_training_data/$7_worker_$4" \
  --pretrained_model_checkpoint_path "${FINETUNED_MODEL_PATH}" \
  --seed "${SEED}" \
  --net "${NET}" \
  --image_size "${IMAGE_SIZE}" \
  --optimizer "${OPTIMIZER}" \
  --momentum "${MOMENTUM}" \
  --initial_learning_rate "${BASE_LR}" \
  --learning_rate_decay_type "${LR_DECAY_TYPE}" \
  --weight_decay "${WEIGHT_DECAY}" \
  --batch_size "${TRAIN_BATCH_SIZE}" \
  --max_steps "${MAX_STEPS}" \
  --save_iter "${SAVE_ITER}" \
  --split_data="${SPLIT_DATA}" \
  --num_gpus "${NUM_GPUS}" \
  --num_nodes "${NUM_NODES}" \
  --grad_bits "${GRAD_BITS}" \
  --clip_factor "${CLIP_FACTOR}" \
  --floating_grad_epoch "${FLOATING_GRAD_EPOCH}" \
  --size_to_binarize "${SIZE_TO_BINARIZE}" \
  "${more_flags[@]}"
