"""What TensorBoard shows of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.codecs.factory import bits_per_parameter, payloads
from terngrad.layout import Layout
from terngrad.training.progress import Progress


class SummaryWriter:
    """Writes scalars and histograms of a run to event files."""

    def __init__(self, directory: str, layout: Layout, nodes: int) -> None:
        """Writes to `directory`, for a group of `nodes` nodes.

        Raises:
          OSError: if the folder cannot be written to.
        """
        try:
            self._writer = tf.summary.create_file_writer(directory)
        except tf.errors.OpError as error:
            raise OSError(f"{directory}: no summaries can be written: {error.message}") from error
        self._layout = layout
        self._nodes = nodes

    def progress(self, progress: Progress) -> None:
        """Losses, learning rate, speed."""
        with self._writer.as_default(progress.step):
            tf.summary.scalar("losses/entropy_loss", progress.entropy_loss)
            tf.summary.scalar("losses/reg_loss", progress.reg_loss)
            tf.summary.scalar("losses/total_loss", progress.total_loss)
            tf.summary.scalar("learning_rate", progress.learning_rate)
            tf.summary.scalar("examples_per_sec", progress.examples_per_sec)

    def gradients(
        self, gradients: Sequence[tf.Tensor], zeros: Mapping[int, tf.Tensor], step: int
    ) -> None:
        """One node's gradients, and the share of zeros among the codes of coded variables."""
        with self._writer.as_default(step):
            for name, gradient in zip(self._layout.names, gradients, strict=True):
                tf.summary.histogram(f"gradients/{name}", gradient)
            for variable, share in zeros.items():
                tf.summary.scalar(f"zeros/{self._layout.names[variable]}", share)

    def traffic(self, codecs: Sequence[Codec], step: int) -> None:
        """Bytes that one node exchanges in a step with these codecs."""
        by_variable = payloads(codecs, self._nodes)
        with self._writer.as_default(step):
            for name, payload in zip(self._layout.names, by_variable, strict=True):
                tf.summary.scalar(f"bytes_sent/{name}", payload.sent)
                tf.summary.scalar(f"bytes_received/{name}", payload.received)
            tf.summary.scalar("bytes_sent_per_step", sum(p.sent for p in by_variable))
            tf.summary.scalar("bytes_received_per_step", sum(p.received for p in by_variable))
            bits = bits_per_parameter(self._layout, codecs, self._nodes)
            tf.summary.scalar("bits_per_parameter", bits)

    def flush(self) -> None:
        """Puts everything on disk."""
        self._writer.flush()
