"""Measurements: each program answers one question; results/ holds dated answers.

oneDNN computes, as in the training programs, unless the environment says otherwise. TensorFlow
reads this when it is loaded, and benchmarks load it before they run.
"""

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
