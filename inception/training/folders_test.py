"""Folders that only one process may write to."""

import os

import pytest

from inception.training.folders import hold_alone


def test_a_folder_has_one_holder_at_a_time_and_another_is_told_which(tmp_path):
    held = hold_alone(str(tmp_path))
    why = f"--train_dir={tmp_path}: another ps, process {os.getpid()}, writes there"
    with pytest.raises(ValueError, match=why):
        hold_alone(str(tmp_path), "ps")
    held.close()
    hold_alone(str(tmp_path)).close()
