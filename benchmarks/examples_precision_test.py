"""The table of the examples' precision."""

from benchmarks import examples_precision


def test_a_row_has_the_accuracy_alone_and_on_workers(monkeypatch, capsys):
    def accuracy(name, text, workers, gradients, arguments):
        batch = arguments[-1]
        assert batch == ("--batch_size=32" if workers == 1 else "--batch_size=16")
        assert "--epochs=1" in arguments
        return {"float32": 0.9, "ternary": 0.8}[gradients]

    monkeypatch.setattr(examples_precision, "_accuracy", accuracy)
    examples_precision.main(["--only=mnist_convnet", "--epochs=1"])
    *_, row = capsys.readouterr().out.splitlines()
    assert row == "| `mnist_convnet.py` | 90.0 % | 90.0 % | 80.0 % |"
