"""A convolutional autoencoder that removes noise from images, and a classifier of its code."""

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
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=32)
args = parser.parse_args()

keras.utils.set_random_seed(1)
train, test = mnist(args.data, args.train_size, args.test_size)
train = group.shard(train)


def with_noise(images, labels):
    """Returns the input of the net and its two target outputs."""
    noise = tf.random.stateless_normal(tf.shape(images), [1, 2], stddev=0.3)
    return tf.clip_by_value(images + noise, 0.0, 1.0), {"image": images, "label": labels}


dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(args.train_size, seed=1)
dataset = dataset.batch(args.batch_size).map(with_noise)
validation = tf.data.Dataset.from_tensor_slices(test).batch(args.batch_size).map(with_noise)

images = keras.Input((28, 28, 1))
x = keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(images)
code = keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(x)
x = keras.layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu")(code)
x = keras.layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu")(x)
image = keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid", name="image")(x)
label = keras.layers.Dense(10, activation="softmax", name="label")(keras.layers.Flatten()(code))
model = keras.Model(images, {"image": image, "label": label})

optimizer = keras.optimizers.Nadam(2e-3)
optimizer = terngrad.keras.distribute(optimizer, group)
losses = {"image": "binary_crossentropy", "label": "sparse_categorical_crossentropy"}
model.compile(optimizer, losses, loss_weights={"image": 1, "label": 0.1}, metrics={"label": "acc"})
model.fit(
    dataset,
    epochs=args.epochs,
    validation_data=validation,
    verbose=2,
    callbacks=[terngrad.keras.DistributedCallback(group)],
)
print("accuracy", model.evaluate(validation, verbose=0, return_dict=True)["label_acc"])
