"""A convolutional net for MNIST."""

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
dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(args.train_size, seed=1)
dataset = dataset.batch(args.batch_size)

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.Adam(1e-3)
optimizer = terngrad.keras.distribute(optimizer, group)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    dataset,
    epochs=args.epochs,
    validation_data=test,
    verbose=2,
    callbacks=[terngrad.keras.DistributedCallback(group)],
)
print("accuracy", model.evaluate(*test, verbose=0)[1])
