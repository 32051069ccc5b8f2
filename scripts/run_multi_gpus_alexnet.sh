#!/usr/bin/env bash
# Trains AlexNet on ImageNet with the paper's recipe for two workers and evaluates it meanwhile.
# Expect 57.6 % precision @ 1 and 80.5 % recall @ 5 with GRAD_BITS=1 (TernGrad), and 57.3 and 80.6 with
# GRAD_BITS=32 DROPOUT_KEEP_PROB=0.5 (float gradients). The paper's recipes for more workers:
#   NUM_NODES=4 TRAIN_BATCH_SIZE=512 BASE_LR=0.02 MAX_STEPS=185000
#   NUM_NODES=8 TRAIN_BATCH_SIZE=1024 BASE_LR=0.04 MAX_STEPS=92500
# Set any setting in the environment: GRAD_BITS=32 bash scripts/run_multi_gpus_alexnet.sh

DATASET_NAME=imagenet
: "${ROOT_WORKSPACE:=${HOME}/terngrad_results/${DATASET_NAME}}" # results and logs
: "${DATA_DIR:=${HOME}/dataset/${DATASET_NAME}-data}"           # record files
: "${FINETUNED_MODEL_PATH:=}"   # a checkpoint to start from
: "${NUM_GPUS:=1}"              # devices; logical CPU devices without a GPU
: "${NUM_NODES:=2}"             # virtual nodes on these devices
: "${NET:=alexnet}"
: "${IMAGE_SIZE:=224}"
: "${OPTIMIZER:=momentum}"
: "${MOMENTUM:=0.9}"
: "${BASE_LR:=0.01}"
: "${LR_DECAY_TYPE:=exponential}"
: "${NUM_EPOCHS_PER_DECAY:=20}"
: "${LEARNING_RATE_DECAY_FACTOR:=0.1}"
: "${GRAD_BITS:=1}"
: "${CODEC:=}"                  # by its name, such as 7-level; replaces GRAD_BITS, CLIP_FACTOR, SIZE_TO_BINARIZE
: "${WEIGHT_DECAY:=0.0005}"
: "${DROPOUT_KEEP_PROB:=0.8}"   # the paper keeps 0.5 with float gradients
: "${CLIP_FACTOR:=2.5}"         # 0.0 = no clipping
: "${FLOATING_GRAD_EPOCH:=0}"   # 0 = never
: "${SIZE_TO_BINARIZE:=9217}"   # smaller variables stay float
: "${TRAIN_BATCH_SIZE:=256}"    # over all nodes
: "${VAL_BATCH_SIZE:=50}"
: "${MAX_STEPS:=370000}"
: "${SAVE_ITER:=5000}"          # steps between checkpoints, each of which is evaluated
: "${EVAL_INTERVAL_SECS:=900}"
: "${EVAL_DEVICE:=/gpu:0}"      # uses the CPU if there is no GPU
: "${RESTORE_AVG_VAR:=True}"    # evaluate the moving averages of the weights
: "${SEED:=123}"

source "$(dirname "${BASH_SOURCE[0]}")/train_and_eval.sh"
