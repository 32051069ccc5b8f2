"""A custom train_step: each step also learns from images mixed in pairs (mixup)."""

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
dataset = dataset.batch(args.batch_size, drop_remainder=True).repeat()


class MixupModel(keras.Model):
    """Adds the loss of mixed images to that of the images."""

    def train_step(self, data):
        """Returns the metrics after one step."""
        images, labels = data
        share = 0.8
        mixed = share * images + (1.0 - share) * tf.reverse(images, [0])
        other = tf.reverse(labels, [0])
        with tf.GradientTape() as tape:
            predicted = self(images, training=True)
            of_mixed = self(mixed, training=True)
            loss = self.compute_loss(y=labels, y_pred=predicted)
            loss += share * self.compute_loss(y=labels, y_pred=of_mixed)
            loss += (1.0 - share) * self.compute_loss(y=other, y_pred=of_mixed)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


images = keras.Input((28, 28, 1))
x = keras.layers.Flatten()(images)
x = keras.layers.Dense(64, activation="relu")(x)
x = keras.layers.BatchNormalization(momentum=0.9)(x)
model = MixupModel(images, keras.layers.Dense(10)(x))

optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=5.0)
optimizer = terngrad.keras.distribute(optimizer, group)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
steps = len(train[0]) // args.batch_size
model.fit(
    dataset,
    epochs=args.epochs,
    steps_per_epoch=steps,
    validation_data=test,
    verbose=2,
    callbacks=[terngrad.keras.DistributedCallback(group)],
)
print("accuracy", model.evaluate(*test, verbose=0, return_dict=True)["accuracy"])
