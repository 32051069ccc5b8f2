# shellcheck shell=bash
# Sourced by run_multi_gpus_*.sh after their settings: trains and evaluates at the same time.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
export PYTHONUNBUFFERED=1              # so that the logs can be followed
export TF_FORCE_GPU_ALLOW_GROWTH=true  # the two programs share a GPU

convert="slim.download_and_convert_data --dataset_name ${DATASET_NAME} --dataset_dir '${DATA_DIR}'"
eval_subset=test
if [[ "${DATASET_NAME}" == imagenet ]]; then
  convert="inception.download_and_preprocess_imagenet '${DATA_DIR}'"
  eval_subset=validation
fi
require_records "${DATA_DIR}" train "${convert}"
require_records "${DATA_DIR}" "${eval_subset}" "${convert}"

RUN_NAME="${DATASET_NAME}_${NET}_${IMAGE_SIZE}_${OPTIMIZER}_${GRAD_BITS}_${BASE_LR}_${CLIP_FACTOR}"
RUN_NAME+="_${FLOATING_GRAD_EPOCH}_${WEIGHT_DECAY}_${MOMENTUM}_${SIZE_TO_BINARIZE}"
RUN_NAME+="_${TRAIN_BATCH_SIZE}_${NUM_NODES}_$(date +%Y-%m-%d_%H-%M-%S)"
TRAIN_DIR="${ROOT_WORKSPACE}/${DATASET_NAME}_training_data/${RUN_NAME}"
EVAL_DIR="${ROOT_WORKSPACE}/${DATASET_NAME}_eval_data/${RUN_NAME}"
INFO_DIR="${ROOT_WORKSPACE}/${DATASET_NAME}_info"
TRAIN_LOG="${INFO_DIR}/training_${RUN_NAME}_info.txt"
EVAL_LOG="${INFO_DIR}/eval_${RUN_NAME}_info.txt"
mkdir -p "${TRAIN_DIR}" "${EVAL_DIR}" "${INFO_DIR}"

stop() { kill -TERM "$@" 2> /dev/null || true; }

# Evaluates in the background; a failure is told at once, as the training may last for days.
evaluate() {
  local stopped='' process=''
  trap 'stopped=yes; [[ ! "${process}" ]] || stop "${process}"' TERM
  "${PYTHON}" -m "inception.${DATASET_NAME}_eval" \
    --data_dir "${DATA_DIR}" \
    --subset "${eval_subset}" \
    --net "${NET}" \
    --image_size "${IMAGE_SIZE}" \
    --batch_size "${VAL_BATCH_SIZE}" \
    --checkpoint_dir "${TRAIN_DIR}" \
    --eval_dir "${EVAL_DIR}" \
    --eval_interval_secs "${EVAL_INTERVAL_SECS}" \
    --restore_avg_var="${RESTORE_AVG_VAR}" \
    --device "${EVAL_DEVICE}" \
    --max_steps "${MAX_STEPS}" \
    > "${EVAL_LOG}" 2>&1 &
  process=$!
  [[ ! "${stopped}" ]] || stop "${process}"
  await "${process}" && return
  [[ ! "${stopped}" ]] || return 0
  echo "The evaluation failed: $(tail -n 1 "${EVAL_LOG}")" >&2
  return 1
}
evaluate &
evaluation=$!

"${PYTHON}" -m "inception.${DATASET_NAME}_train" \
  --data_dir "${DATA_DIR}" \
  --train_dir "${TRAIN_DIR}" \
  "${RECIPE[@]}" \
  > >(tee -i "${TRAIN_LOG}") 2>&1 &
training=$!
stopped=
trap 'stopped=yes; stop "${training}" "${evaluation}"' INT TERM

echo "Training log: ${TRAIN_LOG}"
echo "Evaluation log: ${EVAL_LOG}"

await "${training}" && code=0 || code=$?
((code == 0)) || { stopped=yes; stop "${evaluation}"; } # it would wait for the last checkpoint
await "${evaluation}" || [[ "${stopped}" ]] || code=1
grep 'precision @ 1' "${EVAL_LOG}" | tail -n 1 || true
exit "${code}"
