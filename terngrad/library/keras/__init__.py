"""`model.fit` of Keras on several processes: what terngrad/keras.py offers."""
