#!/usr/bin/env bash
# Fine-tunes inception_v3, pretrained on ImageNet, on the flowers or on your own images, with TF-Slim's recipe.
# Set PRETRAINED_CHECKPOINT, and any setting of finetune.sh, in the environment.

MODEL_NAME=inception_v3
LAST_LAYERS=InceptionV3/Logits,InceptionV3/AuxLogits
WHOLE_NET_RATE=0.0001
: "${LAST_LAYER_STEPS:=1000}"
: "${WHOLE_NET_STEPS:=500}"
: "${LR_DECAY_TYPE:=fixed}"
PUBLISHED=inception_v3_2016_08_28.tar.gz

source "$(dirname "${BASH_SOURCE[0]}")/finetune.sh"
