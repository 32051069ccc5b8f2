r"""Trains or fine-tunes a net on the flowers, or on your own images, on one machine.

python -m inception.flowers_train --data_dir=DIR --fine_tune=True \
    --pretrained_model_checkpoint_path=CHECKPOINT
python -m inception.flowers_train --dataset_name=images --data_dir=DIR --net=alexnet

The classes are those of labels.txt in the data folder.
"""

from inception import programs

if __name__ == "__main__":
    programs.train("flowers", __doc__)
