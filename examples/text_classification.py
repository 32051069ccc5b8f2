"""Classifies short reviews as positive or negative, with word embeddings and a convolution."""

import argparse

import keras
import tensorflow as tf
from data import reviews

import terngrad

group = terngrad.join()

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--train_size", type=int, default=2000)
parser.add_argument("--test_size", type=int, default=500)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch_size", type=int, default=32)
args = parser.parse_args()

keras.utils.set_random_seed(1)
texts, labels = reviews(args.train_size, seed=0)
vectorize = keras.layers.TextVectorization(max_tokens=200, output_sequence_length=24)
vectorize.adapt(texts)
texts, labels = group.shard((texts, labels))
dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(args.train_size, seed=1)
dataset = dataset.batch(args.batch_size).map(lambda text, label: (vectorize(text), label))
test_texts, test_labels = reviews(args.test_size, seed=1)
test = vectorize(test_texts), test_labels

model = keras.Sequential(
    [
        keras.Input((24,), dtype="int64"),
        keras.layers.Embedding(200, 16),
        keras.layers.Conv1D(32, 3, activation="relu"),
        keras.layers.GlobalMaxPooling1D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
optimizer = keras.optimizers.RMSprop(2e-3, clipnorm=1.0)
optimizer = terngrad.keras.distribute(optimizer, group)
model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
model.fit(
    dataset,
    epochs=args.epochs,
    validation_data=test,
    verbose=2,
    callbacks=[terngrad.keras.DistributedCallback(group)],
)
print("accuracy", model.evaluate(*test, verbose=0)[1])
