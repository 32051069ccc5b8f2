#!/usr/bin/env bash
# Trains the paper's CIFAR-10 net with its recipe and evaluates it meanwhile.
# Expect 85.6 % precision @ 1 with GRAD_BITS=1 (TernGrad), 86.6 % with 32 (float gradients).
# Set any setting in the environment: GRAD_BITS=32 bash scripts/run_multi_gpus_cifar10.sh

DATASET_NAME=cifar10
: "${ROOT_WORKSPACE:=${HOME}/terngrad_results/${DATASET_NAME}}" # results and logs
: "${DATA_DIR:=${HOME}/dataset/${DATASET_NAME}-data}"           # record files
: "${FINETUNED_MODEL_PATH:=}"   # a checkpoint to start from
: "${NUM_GPUS:=1}"              # devices; logical CPU devices without a GPU
: "${NUM_NODES:=2}"             # virtual nodes on these devices
: "${NET:=cifar10_alexnet}"
: "${IMAGE_SIZE:=24}"
: "${OPTIMIZER:=adam}"
: "${MOMENTUM:=0.9}"
: "${BASE_LR:=0.0002}"
: "${LR_DECAY_TYPE:=fixed}"
: "${WEIGHT_DECAY:=0.004}"
: "${GRAD_BITS:=1}"
: "${CODEC:=}"                  # by its name, such as 7-level; replaces GRAD_BITS, CLIP_FACTOR, SIZE_TO_BINARIZE
: "${CLIP_FACTOR:=2.5}"         # 0.0 = no clipping
: "${FLOATING_GRAD_EPOCH:=0}"   # 0 = never
: "${SIZE_TO_BINARIZE:=1}"      # 1 = variables of any size
: "${TRAIN_BATCH_SIZE:=128}"    # over all nodes
: "${VAL_BATCH_SIZE:=50}"
: "${MAX_STEPS:=300000}"
: "${SAVE_ITER:=5000}"          # steps between checkpoints, each of which is evaluated
: "${EVAL_INTERVAL_SECS:=60}"
: "${EVAL_DEVICE:=/gpu:0}"      # uses the CPU if there is no GPU
: "${RESTORE_AVG_VAR:=True}"    # evaluate the moving averages of the weights
: "${SEED:=123}"

source "$(dirname "${BASH_SOURCE[0]}")/train_and_eval.sh"
