#!/usr/bin/env bash
# Fine-tunes inception_resnet_v2, pretrained on ImageNet, on the flowers or on your own images, with TF-Slim's recipe.
# Set PRETRAINED_CHECKPOINT, and any setting of finetune.sh, in the environment.

MODEL_NAME=inception_resnet_v2
LAST_LAYERS=InceptionResnetV2/Logits,InceptionResnetV2/AuxLogits
WHOLE_NET_RATE=0.0001
: "${LAST_LAYER_STEPS:=1000}"
: "${WHOLE_NET_STEPS:=500}"
: "${LR_DECAY_TYPE:=fixed}"
PUBLISHED=inception_resnet_v2_2016_08_30.tar.gz

source "$(dirname "${BASH_SOURCE[0]}")/finetune.sh"
