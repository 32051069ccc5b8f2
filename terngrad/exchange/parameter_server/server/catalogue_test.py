"""Operations that workers may declare."""

import pytest

from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.server import catalogue as catalogue_module
from terngrad.exchange.parameter_server.server.catalogue import Catalogue, PushError
from terngrad.service.messages import PIECE_BYTES, Header, OperationMessage

SUM = Operation("sum", Kind.FLOATS, 4, 1, 2)


def catalogue_of(*declared):
    """The catalogue of two workers, of which worker 0 has declared these operations."""
    catalogue = Catalogue(2)
    for index, operation in enumerate(declared):
        catalogue.declare(0, operation.message(index))
    return catalogue


def test_law_10_an_operation_is_declared_once():
    with pytest.raises(PushError, match="sum is declared twice"):
        catalogue_of(SUM).declare(0, SUM.message(1))


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (Operation("sum", Kind.FLOATS, 3, 1, 2), "items of sum is 3; another worker has 4"),
        (Operation("sum", Kind.MAX, 4, 1, 2), "kind of sum is 1; another worker has 3"),
        (Operation("sum", Kind.FLOATS, 4, 2, 2), "local_nodes of sum is 2; .* has 1"),
        (Operation("sum", Kind.FLOATS, 4, 1, 2, 3), "max_code of sum is 3; .* has 1"),
    ],
)
def test_law_10_operations_of_another_layout_are_refused_while_a_worker_has_them(operation, text):
    catalogue = catalogue_of(SUM)
    with pytest.raises(PushError, match=text):
        catalogue.declare(1, operation.message(0))
    assert catalogue.clear(0) == set()
    catalogue.declare(1, operation.message(0))
    assert catalogue.find(1, Header()) == operation


def test_law_10_declarations_out_of_order_or_impossible_are_named():
    catalogue = catalogue_of(SUM)
    message = Operation("later", Kind.FLOATS, 4, 1, 2).message(5)
    with pytest.raises(PushError, match="operation index is 5; allowed is 1, the next one"):
        catalogue.declare(0, message)
    with pytest.raises(PushError, match="kind is 0"):
        catalogue.declare(0, OperationMessage(index=1, name="x"))


def test_law_10_the_pieces_of_a_worker_are_limited(monkeypatch):
    monkeypatch.setattr(catalogue_module, "MAX_PIECES", 9)
    eight_pieces = Operation("eight pieces", Kind.FLOATS, 2 * PIECE_BYTES, 1, 2)
    catalogue = catalogue_of(SUM, eight_pieces)
    assert catalogue.piece_count == 9
    other = Operation("other", Kind.FLOATS, 0, 1, 2)
    with pytest.raises(PushError, match="a step has 10 pieces with other; allowed are 9"):
        catalogue.declare(0, other.message(2))
    catalogue.declare(1, other.message(0))  # another worker has pieces left


def test_operations_of_other_workers_stay_when_a_worker_is_cleared():
    other = Operation("other", Kind.FLOATS, 1, 1, 2)
    catalogue = catalogue_of(SUM, other)
    catalogue.declare(1, other.message(0))
    assert catalogue.clear(0) == {"other"}
    with pytest.raises(PushError, match="operation 0 was not declared"):
        catalogue.find(0, Header())
    assert catalogue.find(1, Header()) == other
    assert catalogue.piece_count == 1
