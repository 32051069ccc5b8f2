#!/usr/bin/env bash
# Trains LeNet on MNIST with the paper's recipe and evaluates it meanwhile.
# Expect 99.0 to 99.3 % precision @ 1 with GRAD_BITS=32 (float gradients) and with 1 (TernGrad).
# Set any setting in the environment: GRAD_BITS=32 bash scripts/run_multi_gpus_lenet.sh

DATASET_NAME=mnist
: "${ROOT_WORKSPACE:=${HOME}/terngrad_results/${DATASET_NAME}}" # results and logs
: "${DATA_DIR:=${HOME}/dataset/${DATASET_NAME}-data}"           # record files
: "${FINETUNED_MODEL_PATH:=}"   # a checkpoint to start from
: "${NUM_GPUS:=1}"              # devices; logical CPU devices without a GPU
: "${NUM_NODES:=4}"             # virtual nodes on these devices
: "${NET:=lenet}"
: "${IMAGE_SIZE:=28}"
: "${OPTIMIZER:=momentum}"
: "${MOMENTUM:=0.9}"
: "${BASE_LR:=0.01}"
: "${LR_DECAY_TYPE:=polynomial}"
: "${WEIGHT_DECAY:=0.0005}"
: "${GRAD_BITS:=1}"
: "${CODEC:=}"                  # by its name, such as 7-level; replaces GRAD_BITS, CLIP_FACTOR, SIZE_TO_BINARIZE
: "${CLIP_FACTOR:=0.0}"         # 0.0 = no clipping
: "${FLOATING_GRAD_EPOCH:=0}"   # 0 = never
: "${SIZE_TO_BINARIZE:=1}"      # 1 = variables of any size
: "${TRAIN_BATCH_SIZE:=64}"     # over all nodes
: "${VAL_BATCH_SIZE:=100}"
: "${MAX_STEPS:=10000}"
: "${SAVE_ITER:=1000}"          # steps between checkpoints, each of which is evaluated
: "${EVAL_INTERVAL_SECS:=5}"
: "${EVAL_DEVICE:=/gpu:0}"      # uses the CPU if there is no GPU
: "${RESTORE_AVG_VAR:=True}"    # evaluate the moving averages of the weights
: "${SEED:=123}"

source "$(dirname "${BASH_SOURCE[0]}")/train_and_eval.sh"
