#!/usr/bin/env bash
# Usage: run_inception_resnet_v2.sh WORKERS
# Trains Inception-ResNet-v2 on ImageNet with large batches, on WORKERS processes that mpirun starts.
# The learning rate grows with the square root of the global batch. Above 1024 images it climbs
# gradually over 5 epochs. Then it falls with a polynomial of power 3. Expect 76.7 % precision @ 1 and
# 93.2 % recall @ 5 after 108 epochs with float gradients (GRAD_BITS=32).
# Set any setting in the environment. MPI_FLAGS go to mpirun: MPI_FLAGS='--hostfile hosts'; Open MPI
# needs MPI_FLAGS='--allow-run-as-root --oversubscribe' for root. ENGINE=horovod uses horovodrun.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${DATA_DIR:=${HOME}/dataset/imagenet-data}" # record files
: "${TRAIN_DIR:=${HOME}/terngrad_results/imagenet/inception_resnet_v2}"
: "${ENGINE:=mpi}"              # or horovod
: "${MPI_FLAGS:=}"              # more flags of mpirun or horovodrun, separated by spaces
: "${NET:=inception_resnet_v2}"
: "${IMAGE_SIZE:=299}"
: "${TRAIN_BATCH_SIZE:=64}"     # of each worker
: "${BASE_BATCH_SIZE:=256}"     # global batch that BASE_LR was chosen for
: "${BASE_LR:=0.045}"
: "${MOMENTUM:=0.9}"
: "${WEIGHT_DECAY:=0.0002}"
: "${DROPOUT_KEEP_PROB:=0.8}"
: "${EPOCHS:=108}"
: "${NUM_EXAMPLES:=1281167}"    # training images
: "${MAX_STEPS:=}"              # empty: EPOCHS of NUM_EXAMPLES images
: "${GRAD_BITS:=1}"
: "${CODEC:=}"                  # by its name, such as 7-level; replaces GRAD_BITS, CLIP_FACTOR
: "${CLIP_FACTOR:=2.5}"         # 0.0 = no clipping
: "${SAVE_ITER:=5000}"          # steps between checkpoints
: "${SEED:=123}"

[[ "${1:-}" =~ ^[1-9][0-9]*$ && $# == 1 ]] || die "needs the number of WORKERS, got '$*'"
[[ "${ENGINE}" == mpi || "${ENGINE}" == horovod ]] \
  || die "ENGINE must be mpi or horovod, got '${ENGINE}'"
launcher="$([[ "${ENGINE}" == mpi ]] && echo mpirun || echo horovodrun)"
path="$(PATH="$(dirname "${PYTHON}"):${PATH}" command -v "${launcher}")" \
  || die "there is no ${launcher}; bash scripts/setup.sh mpi, or bash scripts/install_horovod.sh"
require_records "${DATA_DIR}" train "inception.download_and_preprocess_imagenet '${DATA_DIR}'"

global_batch=$((TRAIN_BATCH_SIZE * $1))
: "${MAX_STEPS:=$((EPOCHS * NUM_EXAMPLES / global_batch))}"
warmup_epochs=$((global_batch > 1024 ? 5 : 0))
read -d '' -ra more_flags <<< "${MPI_FLAGS}" || true # which may have several lines
codec=(--grad_bits "${GRAD_BITS}" --clip_factor "${CLIP_FACTOR}")
[[ ! "${CODEC}" ]] || codec=(--codec "${CODEC}") # which brings what suits it

# horovodrun takes --net for the beginning of its own flags.
exec "${path}" -np "$1" "${more_flags[@]}" "${PYTHON}" -m inception.imagenet_distributed_train \
  --variable_update="${ENGINE}" \
  --data_dir "${DATA_DIR}" \
  --train_dir "${TRAIN_DIR}" \
  -net "${NET}" \
  --image_size "${IMAGE_SIZE}" \
  --batch_size "${TRAIN_BATCH_SIZE}" \
  --max_steps "${MAX_STEPS}" \
  --optimizer momentum \
  --momentum "${MOMENTUM}" \
  --initial_learning_rate "${BASE_LR}" \
  --learning_rate_scaling sqrt \
  --base_batch_size "${BASE_BATCH_SIZE}" \
  --warmup_epochs "${warmup_epochs}" \
  --learning_rate_decay_type polynomial \
  --learning_rate_power 3 \
  --weight_decay "${WEIGHT_DECAY}" \
  --dropout_keep_prob "${DROPOUT_KEEP_PROB}" \
  "${codec[@]}" \
  --save_iter "${SAVE_ITER}" \
  --seed "${SEED}"
