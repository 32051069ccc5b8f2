"""An MLP-Mixer: patches of an image are mixed over places, then over channels."""

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


class Mixer(keras.layers.Layer):
    """Mixes [batch, places, channels] over places, then over channels."""

    def __init__(self, places, channels):
        """Makes two small perceptrons."""
        super().__init__()
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.over_places = self.perceptron(places)
        self.over_channels = self.perceptron(channels)

    def perceptron(self, width):
        """Returns two dense layers."""
        hidden = keras.layers.Dense(2 * width, activation="gelu")
        return keras.Sequential([hidden, keras.layers.Dense(width)])

    def call(self, x):
        """Adds the outputs of both perceptrons."""
        turned = keras.ops.transpose(self.norms[0](x), (0, 2, 1))
        x = x + keras.ops.transpose(self.over_places(turned), (0, 2, 1))
        return x + self.over_channels(self.norms[1](x))


class MLPMixer(keras.Model):
    """Cuts images into patches of 4 x 4 pixels, mixes them, and classifies their mean."""

    def __init__(self, channels=32, blocks=1):
        """Makes the layers; their weights follow when the first batch is known."""
        super().__init__()
        self.cut = keras.layers.Conv2D(channels, 4, strides=4)
        self.flatten = keras.layers.Reshape((49, channels))
        self.blocks = [Mixer(49, channels) for _ in range(blocks)]
        self.mean = keras.layers.GlobalAveragePooling1D()
        self.classify = keras.layers.Dense(10)

    def call(self, images):
        """Returns logits."""
        x = self.flatten(self.cut(images))
        for block in self.blocks:
            x = block(x)
        return self.classify(self.mean(x))


model = MLPMixer()
optimizer = keras.optimizers.AdamW(2e-3, weight_decay=1e-4, use_ema=True, ema_momentum=0.9)
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
