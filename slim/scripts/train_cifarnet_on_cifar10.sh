#!/usr/bin/env bash
# Makes CIFAR-10's record files, trains CifarNet on them with TF-Slim's recipe, and evaluates it.
# Set any setting in the environment.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"

: "${TRAIN_DIR:=/tmp/cifarnet-model}" # checkpoints and summaries
: "${DATASET_DIR:=/tmp/cifar10}"      # record files
: "${SOURCE_DIR:=}"                   # folder of CIFAR-10's archive; empty = download it
: "${MAX_STEPS:=100000}"

"${PYTHON}" -m slim.download_and_convert_data \
  --dataset_name=cifar10 \
  --dataset_dir="${DATASET_DIR}" \
  ${SOURCE_DIR:+--source_dir="${SOURCE_DIR}"}

"${PYTHON}" -m slim.train_image_classifier \
  --train_dir="${TRAIN_DIR}" \
  --dataset_name=cifar10 \
  --dataset_split_name=train \
  --dataset_dir="${DATASET_DIR}" \
  --model_name=cifarnet \
  --preprocessing_name=cifarnet \
  --max_number_of_steps="${MAX_STEPS}" \
  --batch_size=128 \
  --learning_rate=0.1 \
  --learning_rate_decay_factor=0.1 \
  --num_epochs_per_decay=200 \
  --save_interval_secs=120 \
  --save_summaries_secs=120 \
  --log_every_n_steps=100 \
  --optimizer=sgd \
  --weight_decay=0.004

"${PYTHON}" -m slim.eval_image_classifier \
  --checkpoint_path="${TRAIN_DIR}" \
  --eval_dir="${TRAIN_DIR}" \
  --dataset_name=cifar10 \
  --dataset_split_name=test \
  --dataset_dir="${DATASET_DIR}" \
  --model_name=cifarnet
