"""Files of callbacks while a loss ends this process, without other processes."""

import threading

import keras
import pytest

from terngrad.library.keras.saving import Writer, WriterLock


def in_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


class Writing(keras.callbacks.Callback):
    """Calls a function at the end of an epoch."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def on_epoch_end(self, epoch, logs=None):
        """Writes."""
        self.write(epoch)


def test_a_loss_waits_for_the_callback_that_writes_and_no_other_begins():
    lock, done, has_saved = WriterLock(), [], threading.Event()

    def end():
        done.append(lock.at_end(lambda: "saved"))
        has_saved.set()
        threading.Event().wait()  # a thread that ends the process does not go on

    def write(epoch):
        if epoch == 0:
            in_thread(end)
            has_saved.wait(0.2)
        done.append(epoch)

    writer = Writer(Writing(write), lock)
    writer.on_epoch_end(0, {})
    has_saved.wait()
    assert done == [0, "saved"]
    later = in_thread(lambda: writer.on_epoch_end(1))
    later.join(0.2)
    assert later.is_alive(), "a callback writes while the process ends"
    assert done == [0, "saved"]


def test_a_loss_waits_neither_for_ever_nor_for_a_callback_that_has_failed():
    lock, said = WriterLock(limit_secs=0.05), []

    def fail(epoch):
        in_thread(lambda: said.append(lock.at_end(lambda: "saved"))).join()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        Writer(Writing(fail), lock).on_epoch_end(0)
    assert said == ["a callback has written for 0.05 s: its file may be damaged"]
    assert lock.at_end(lambda: "saved") == "saved", "the thread of fit goes on with the error"
    in_thread(lambda: said.append(lock.at_end(lambda: "saved"))).join()
    assert said[1:] == ["saved"]
