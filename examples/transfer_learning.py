"""Transfer learning: five classes, then five others with frozen layers, then fine-tuning."""

import argparse

import keras
import tensorflow as tf
from data import mnist

import terngrad

group = terngrad.join()

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", help="folder with MNIST's files (default: synthetic images)")
parser.add_argument("--train_size", type=int, default=2000)
parser.add_argument("--test_size", type=int, default=500)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=32)
args = parser.parse_args()

keras.utils.set_random_seed(1)
train, test = mnist(args.data, args.train_size, args.test_size)


def classes(data, first):
    """Returns the images and labels of the five classes from `first` on, counted from 0."""
    images, labels = data
    chosen = (labels >= first) & (labels < first + 5)
    return images[chosen], labels[chosen] - first


def train_on(train, test, rate):
    """Compiles and fits the model."""
    train = group.shard(train)
    dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(args.train_size, seed=1)
    dataset = dataset.batch(args.batch_size)
    optimizer = keras.optimizers.Adam(rate)
    optimizer = terngrad.keras.distribute(optimizer, group)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        dataset,
        epochs=args.epochs,
        validation_data=test,
        verbose=2,
        callbacks=[terngrad.keras.DistributedCallback(group)],
    )


base = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
model = keras.Sequential([base, keras.layers.Dense(5, activation="softmax")])
train_on(classes(train, 0), classes(test, 0), 3e-3)

base.trainable = False
model = keras.Sequential([base, keras.layers.Dense(5, activation="softmax")])
train_on(classes(train, 5), classes(test, 5), 1e-2)
base.trainable = True
train_on(classes(train, 5), classes(test, 5), 1e-3)
print("accuracy", model.evaluate(*classes(test, 5), verbose=0)[1])
