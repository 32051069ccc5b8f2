#!/usr/bin/env bash
# Trains GoogLeNet, without auxiliary heads, on ImageNet with the paper's recipe for two workers, and
# evaluates it meanwhile. Expect 86.8 % recall @ 5 with GRAD_BITS=1 (TernGrad), and 88.3 with
# GRAD_BITS=32 WEIGHT_DECAY=0.00004 DROPOUT_KEEP_PROB=0.8 (float gradients). The paper's recipes for
# more workers:
#   NUM_NODES=4 TRAIN_BATCH_SIZE=256 BASE_LR=0.08 MAX_STEPS=300000
#   NUM_NODES=8 TRAIN_BATCH_SIZE=512 BASE_LR=0.10 MAX_STEPS=300000 WEIGHT_DECAY=0.00002
# Set any setting in the environment: GRAD_BITS=32 bash scripts/run_multi_gpus_googlenet.sh

DATASET_NAME=imagenet
: "${ROOT_WORKSPACE:=${HOME}/terngrad_results/${DATASET_NAME}}" # results and logs
: "${DATA_DIR:=${HOME}/dataset/${DATASET_NAME}-data}"           # record files
: "${FINETUNED_MODEL_PATH:=}"   # a checkpoint to start from
: "${NUM_GPUS:=1}"              # devices; logical CPU devices without a GPU
: "${NUM_NODES:=2}"             # virtual nodes on these devices
: "${NET:=googlenet}"
: "${IMAGE_SIZE:=224}"
: "${OPTIMIZER:=momentum}"
: "${MOMENTUM:=0.9}"
: "${BASE_LR:=0.04}"
: "${LR_DECAY_TYPE:=polynomial}"
: "${GRAD_BITS:=1}"
: "${CODEC:=}"                  # by its name, such as 7-level; replaces GRAD_BITS, CLIP_FACTOR, SIZE_TO_BINARIZE
: "${WEIGHT_DECAY:=0.00001}"    # the paper uses 0.00004 with float gradients
: "${DROPOUT_KEEP_PROB:=0.92}"  # the paper keeps 0.8 with float gradients
: "${CLIP_FACTOR:=2.5}"         # 0.0 = no clipping
: "${FLOATING_GRAD_EPOCH:=0}"   # 0 = never
: "${SIZE_TO_BINARIZE:=1}"      # smaller variables stay float
: "${TRAIN_BATCH_SIZE:=128}"    # over all nodes
: "${VAL_BATCH_SIZE:=25}"
: "${MAX_STEPS:=600000}"
: "${SAVE_ITER:=5000}"          # steps between checkpoints, each of which is evaluated
: "${EVAL_INTERVAL_SECS:=900}"
: "${EVAL_DEVICE:=/gpu:0}"      # uses the CPU if there is no GPU
: "${RESTORE_AVG_VAR:=True}"    # evaluate the moving averages of the weights
: "${SEED:=123}"

source "$(dirname "${BASH_SOURCE[0]}")/train_and_eval.sh"
