"""Measurements: each program answers one question; results/ holds dated answers.

TensorFlow is loaded here, since most of them need it before they read their flags: otherwise its
lines on stderr would precede the help. oneDNN is on, as in the training programs. gpu_check needs
no TensorFlow.
"""

try:
    from inception import app

    with app.quiet_import():
        pass
except ModuleNotFoundError as error:
    if error.name not in ("absl", "keras", "tensorflow"):
        raise
