#!/usr/bin/env bash
# Fine-tunes resnet_v1_50, pretrained on ImageNet, on the flowers or on your own images, with TF-Slim's recipe.
# Set PRETRAINED_CHECKPOINT, and any setting of finetune.sh, in the environment.

MODEL_NAME=resnet_v1_50
LAST_LAYERS=resnet_v1_50/logits
WHOLE_NET_RATE=0.001
: "${LAST_LAYER_STEPS:=3000}"
: "${WHOLE_NET_STEPS:=1000}"
: "${LR_DECAY_TYPE:=exponential}"
PUBLISHED=resnet_v1_50_2016_08_28.tar.gz

source "$(dirname "${BASH_SOURCE[0]}")/finetune.sh"
