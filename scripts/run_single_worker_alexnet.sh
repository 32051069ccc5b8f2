#!/usr/bin/env bash
# Usage: run_single_worker_alexnet.sh PS_HOSTS WORKER_HOSTS worker TASK_ID DEVICE DATA_DIR EXPERIMENT_ID
#   run_single_worker_alexnet.sh hosta:2222 hosta:2224,hostb:2224 worker 0 0 ~/dataset/imagenet-data try1
# Runs one worker that trains AlexNet on ImageNet with parameter servers, on the GPUs DEVICE (0, or
# 0,1, or -1 for none). The settings are the paper's for eight workers; with two of them it uses
# BASE_LR=0.01 MAX_STEPS=370000, with four BASE_LR=0.02 MAX_STEPS=185000.
# An EXPERIMENT_ID used before continues from its last checkpoint.
# Set any setting in the environment; run_dist.sh passes the settings on.

: "${DATASET_NAME:=imagenet}" # any registered data set; other settings must fit it
: "${ROOT_WORKSPACE:=${HOME}/tmp}" # checkpoints and summaries
: "${FINETUNED_MODEL_PATH:=}"   # a checkpoint to start from
: "${NUM_GPUS:=1}"              # devices of this worker; logical CPU devices without a GPU
: "${NUM_NODES:=-1}"            # nodes on these devices; -1 = one per device
: "${NET:=alexnet}"
: "${IMAGE_SIZE:=224}"
: "${OPTIMIZER:=momentum}"
: "${MOMENTUM:=0.9}"
: "${BASE_LR:=0.04}"
: "${LR_DECAY_TYPE:=exponential}"
: "${NUM_EPOCHS_PER_DECAY:=20}"
: "${LEARNING_RATE_DECAY_FACTOR:=0.1}"
: "${WEIGHT_DECAY:=0.0005}"
: "${DROPOUT_KEEP_PROB:=0.8}"   # the paper keeps 0.5 with float gradients
: "${GRAD_BITS:=1}"
: "${CODEC:=}"                  # by its name, such as 7-level; replaces GRAD_BITS, CLIP_FACTOR, SIZE_TO_BINARIZE
: "${CLIP_FACTOR:=2.5}"         # 0.0 = no clipping
: "${FLOATING_GRAD_EPOCH:=0}"   # 0 = never
: "${SIZE_TO_BINARIZE:=9217}"   # smaller variables stay float
: "${TRAIN_BATCH_SIZE:=128}"    # of this worker
: "${MAX_STEPS:=92500}"
: "${SAVE_ITER:=5000}"          # steps between checkpoints
: "${SPLIT_DATA:=True}"         # False: DATA_DIR holds only this worker's share
: "${SEED:=123}"
: "${WORKER_FLAGS:=}"           # more flags, separated by spaces: --cross_replica_sync=False

source "$(dirname "${BASH_SOURCE[0]}")/single_worker.sh"
