"""Sets of workers as bytes."""

import pytest

from terngrad.coordination import groups


@pytest.mark.parametrize("workers", [(), (0,), (7, 8), (0, 3, 65535)])
def test_sets_of_workers_survive_their_bytes(workers):
    assert groups.unpack(groups.pack(workers)) == workers


def test_worker_i_is_bit_i_mod_8_of_byte_i_div_8():
    assert groups.pack([1, 9]).hex(" ") == "02 02"


@pytest.mark.parametrize("content", [b"\x04", b"\1" * 9, bytes(1 << 20)], ids=len)
def test_law_10_workers_that_do_not_exist_are_refused(content):
    with pytest.raises(ValueError, match="members that do not exist; allowed are 0 to 1"):
        groups.unpack(content, 2)
