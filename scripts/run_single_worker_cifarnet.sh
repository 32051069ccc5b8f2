#!/usr/bin/env bash
# Usage: run_single_worker_cifarnet.sh PS_HOSTS WORKER_HOSTS worker TASK_ID DEVICE DATA_DIR EXPERIMENT_ID
#   run_single_worker_cifarnet.sh hosta:2222 hosta:2224,hostb:2224 worker 0 0 ~/dataset/cifar10-data try1
# Runs one worker that trains the paper's CIFAR-10 net with parameter servers, on the GPUs DEVICE (0,
# or 0,1, or -1 for none). An EXPERIMENT_ID used before continues from its last checkpoint.
# Set any setting in the environment; run_dist.sh passes the settings on.

: "${DATASET_NAME:=cifar10}" # any registered data set; other settings must fit it
: "${ROOT_WORKSPACE:=${HOME}/tmp}" # checkpoints and summaries
: "${FINETUNED_MODEL_PATH:=}"   # a checkpoint to start from
: "${NUM_GPUS:=1}"              # devices of this worker; logical CPU devices without a GPU
: "${NUM_NODES:=-1}"            # nodes on these devices; -1 = one per device
: "${NET:=cifar10_alexnet}"
: "${IMAGE_SIZE:=24}"
: "${OPTIMIZER:=adam}"
: "${MOMENTUM:=0.9}"
: "${BASE_LR:=0.0002}"
: "${LR_DECAY_TYPE:=fixed}"
: "${NUM_EPOCHS_PER_DECAY:=}"   # empty, here and below: the program's own
: "${LEARNING_RATE_DECAY_FACTOR:=}"
: "${WEIGHT_DECAY:=0.004}"
: "${DROPOUT_KEEP_PROB:=}"
: "${GRAD_BITS:=1}"
: "${CODEC:=}"                  # by its name, such as 7-level; replaces GRAD_BITS, CLIP_FACTOR, SIZE_TO_BINARIZE
: "${CLIP_FACTOR:=2.5}"         # 0.0 = no clipping
: "${FLOATING_GRAD_EPOCH:=0}"   # 0 = never
: "${SIZE_TO_BINARIZE:=1}"      # 1 = variables of any size
: "${TRAIN_BATCH_SIZE:=64}"     # of this worker
: "${MAX_STEPS:=300000}"
: "${SAVE_ITER:=5000}"          # steps between checkpoints
: "${SPLIT_DATA:=True}"         # False: DATA_DIR holds only this worker's share
: "${SEED:=123}"
: "${WORKER_FLAGS:=}"           # more flags, separated by spaces: --cross_replica_sync=False

source "$(dirname "${BASH_SOURCE[0]}")/single_worker.sh"
