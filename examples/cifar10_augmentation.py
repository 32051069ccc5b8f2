"""A convolutional net with batch normalization for CIFAR-10, on images changed at random."""

import argparse

import keras
import tensorflow as tf
from data import cifar10

import terngrad

group = terngrad.join()

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", help="cifar-10-python.tar.gz (default: synthetic images)")
parser.add_argument("--train_size", type=int, default=2000)
parser.add_argument("--test_size", type=int, default=500)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=32)
args = parser.parse_args()

keras.utils.set_random_seed(1)
train, test = cifar10(args.data, args.train_size, args.test_size)
train = group.shard(train)
augment = keras.Sequential(
    [
        keras.layers.RandomFlip("horizontal", seed=1),
        keras.layers.RandomTranslation(0.1, 0.1, seed=2),
    ]
)
dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(args.train_size, seed=1)
dataset = dataset.batch(args.batch_size)
dataset = dataset.map(lambda images, labels: (augment(images, training=True), labels))


def block(x, filters):
    """Convolves, normalizes and halves the side."""
    x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = keras.layers.Activation("relu")(x)
    return keras.layers.MaxPooling2D()(x)


images = keras.Input((32, 32, 3))
x = block(block(block(images, 16), 32), 64)
x = keras.layers.GlobalAveragePooling2D()(x)
model = keras.Model(images, keras.layers.Dense(10)(x))

rate = keras.optimizers.schedules.CosineDecay(0.05, args.epochs * len(dataset))
optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
optimizer = terngrad.keras.distribute(optimizer, group)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
model.fit(
    dataset,
    epochs=args.epochs,
    validation_data=test,
    verbose=2,
    callbacks=[terngrad.keras.DistributedCallback(group)],
)
print("accuracy", model.evaluate(*test, verbose=0)[1])
