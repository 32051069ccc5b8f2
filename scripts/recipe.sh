# shellcheck shell=bash
# Sourced by train_and_eval.sh and single_worker.sh: RECIPE, the flags of a recipe's settings.

RECIPE=(
  --pretrained_model_checkpoint_path "${FINETUNED_MODEL_PATH}"
  --seed "${SEED}"
  --net "${NET}"
  --image_size "${IMAGE_SIZE}"
  --optimizer "${OPTIMIZER}"
  --momentum "${MOMENTUM}"
  --initial_learning_rate "${BASE_LR}"
  --learning_rate_decay_type "${LR_DECAY_TYPE}"
  --weight_decay "${WEIGHT_DECAY}"
  --batch_size "${TRAIN_BATCH_SIZE}"
  --max_steps "${MAX_STEPS}"
  --save_iter "${SAVE_ITER}"
  --num_gpus "${NUM_GPUS}"
  --num_nodes "${NUM_NODES}"
  --floating_grad_epoch "${FLOATING_GRAD_EPOCH}"
)
if [[ "${CODEC:-}" ]]; then # older copies of recipes lack the setting
  RECIPE+=(--codec "${CODEC}")
  # The program takes what suits the codec, and prints it; a run's name says so.
  GRAD_BITS="${CODEC}" CLIP_FACTOR=suited SIZE_TO_BINARIZE=suited
else
  RECIPE+=(--grad_bits "${GRAD_BITS}" --clip_factor "${CLIP_FACTOR}")
  RECIPE+=(--size_to_binarize "${SIZE_TO_BINARIZE}")
fi
# Recipes leave these settings to the program where they are empty or not there.
for setting in DROPOUT_KEEP_PROB NUM_EPOCHS_PER_DECAY LEARNING_RATE_DECAY_FACTOR; do
  [[ ! "${!setting:-}" ]] || RECIPE+=("--${setting,,}" "${!setting}")
done
