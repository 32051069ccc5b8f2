# shellcheck shell=bash
# Sourced by finetune_*_on_flowers.sh after their settings: trains a fresh last layer of a pretrained
# net, then the whole net, and evaluates after each of the two.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"

: "${PRETRAINED_CHECKPOINT:=}"  # a checkpoint or weight file of the net, trained on ImageNet
: "${DATASET_NAME:=flowers}"    # or images, for your own
: "${TRAIN_DIR:=/tmp/${DATASET_NAME}-models/${MODEL_NAME}}" # checkpoints and summaries
: "${DATASET_DIR:=/tmp/flowers}" # record files
: "${SOURCE_DIR:=}"             # folder of flower_photos or its archive; empty = download it
: "${BATCH_SIZE:=32}"
: "${IMAGE_SIZE:=}"             # empty = the net's default
: "${SAVE_INTERVAL_SECS:=60}"

[[ "${PRETRAINED_CHECKPOINT}" ]] || die "set PRETRAINED_CHECKPOINT, for instance to the unpacked" \
  "http://download.tensorflow.org/models/${PUBLISHED}"
compgen -f -- "${PRETRAINED_CHECKPOINT}" > /dev/null \
  || die "no such file: PRETRAINED_CHECKPOINT=${PRETRAINED_CHECKPOINT}"

if [[ "${DATASET_NAME}" == flowers ]]; then
  "${PYTHON}" -m slim.download_and_convert_data \
    --dataset_name=flowers \
    --dataset_dir="${DATASET_DIR}" \
    ${SOURCE_DIR:+--source_dir="${SOURCE_DIR}"}
fi

train() { # FOLDER STEPS CHECKPOINT LEARNING_RATE FLAG...
  "${PYTHON}" -m slim.train_image_classifier \
    --train_dir="$1" \
    --max_number_of_steps="$2" \
    --checkpoint_path="$3" \
    --learning_rate="$4" \
    --learning_rate_decay_type="${LR_DECAY_TYPE}" \
    --dataset_name="${DATASET_NAME}" \
    --dataset_split_name=train \
    --dataset_dir="${DATASET_DIR}" \
    --model_name="${MODEL_NAME}" \
    --batch_size="${BATCH_SIZE}" \
    ${IMAGE_SIZE:+--train_image_size="${IMAGE_SIZE}"} \
    --save_interval_secs="${SAVE_INTERVAL_SECS}" \
    --save_summaries_secs="${SAVE_INTERVAL_SECS}" \
    --log_every_n_steps=10 \
    --optimizer=rmsprop \
    --weight_decay=0.00004 \
    "${@:5}"
}

evaluate() { # FOLDER
  "${PYTHON}" -m slim.eval_image_classifier \
    --checkpoint_path="$1" \
    --eval_dir="$1" \
    --dataset_name="${DATASET_NAME}" \
    --dataset_split_name=validation \
    --dataset_dir="${DATASET_DIR}" \
    ${IMAGE_SIZE:+--eval_image_size="${IMAGE_SIZE}"} \
    --model_name="${MODEL_NAME}"
}

train "${TRAIN_DIR}" "${LAST_LAYER_STEPS}" "${PRETRAINED_CHECKPOINT}" 0.01 \
  --checkpoint_exclude_scopes="${LAST_LAYERS}" \
  --trainable_scopes="${LAST_LAYERS}"
evaluate "${TRAIN_DIR}"

train "${TRAIN_DIR}/all" "${WHOLE_NET_STEPS}" "${TRAIN_DIR}" "${WHOLE_NET_RATE}"
evaluate "${TRAIN_DIR}/all"
