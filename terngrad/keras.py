"""Keras' `model.fit` on several machines, with compressed gradients.

group = terngrad.join()
optimizer = terngrad.keras.distribute(keras.optimizers.Adam(1e-3), group)
model.compile(optimizer, loss, metrics=metrics)
model.fit(group.shard(dataset), callbacks=[terngrad.keras.Together(group)])
terngrad.keras.evaluate(model, test, group)
"""

from terngrad.library.keras.distribute import distribute
from terngrad.library.keras.evaluation import evaluate, predict
from terngrad.library.keras.together import Together

__all__ = ["Together", "distribute", "evaluate", "predict"]
