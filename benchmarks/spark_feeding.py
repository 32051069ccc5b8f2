"""How fast is a worker inside Spark that gets rows, beside one that reads the suite's records?

One worker trains LeNet on MNIST, on a core, in turns: on records that it reads itself
(InputMode.TENSORFLOW), and on rows that Spark hands it (InputMode.SPARK).

python -m benchmarks.spark_feeding --mnist_dir=FOLDER --json=figures.json
"""

import dataclasses
import functools
import statistics
import tempfile
from pathlib import Path

from absl.flags import FlagValues

from benchmarks import report
from benchmarks.spark_feeding_worker import Settings, train
from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag
from inception.on_spark.session import open_session
from slim.conversion.convert import convert
from slim.datasets import mnist
from terngrad.spark.cluster import InputMode, run

_SAMPLE = str(Path(mnist.__file__).parent / "mnist_sample")
_MOST_EPOCHS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    mnist_dir: str = flag("Data", TEXT, _SAMPLE, "folder of MNIST's original files")
    batch_size: int = flag("Training", at_least(1), 64, "images in a step", "images")
    steps: int = flag("Runtime", at_least(1), 500, "timed steps in a round", "steps")
    rounds: int = flag("Runtime", at_least(1), 5, "rounds of each kind, in turns")
    spark: str = flag("Distributed", TEXT, "local-cluster[2,1,2048]", "Spark master")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")


def main(values: FlagValues) -> None:
    """Measures both and prints images a second, and their ratio."""
    options = table.read(_Options, values)
    images, labels = mnist.load(options.mnist_dir)["train"]
    rows = [(bytearray(x.tobytes()), int(y)) for x, y in zip(images, labels, strict=True)]
    session = open_session(options.spark, "spark_feeding")
    try:
        frame = session.createDataFrame(rows, "image binary, label int").cache()
        with tempfile.TemporaryDirectory() as folder:
            convert("mnist", folder, source_dir=options.mnist_dir)
            settings = Settings(folder, options.batch_size, options.steps)
            found: dict[str, list[float]] = {"records": [], "rows": []}
            for _ in range(options.rounds):
                for kind, rates in found.items():
                    rates.append(_images_per_sec(session, settings, frame, kind))
    finally:
        session.stop()
    ratios = [b / a for a, b in zip(*found.values(), strict=True)]
    figures = {f"{kind}, images/s": statistics.median(rates) for kind, rates in found.items()}
    figures["rows to records"] = statistics.median(ratios)
    report.print_lines(figures)
    if options.json:
        given = {"environment": report.environment() | dataclasses.asdict(options)}
        report.write_json(options.json, {**given, "images_per_s": found, "figures": figures})


def _images_per_sec(session: object, settings: Settings, frame: object, kind: str) -> float:
    lines: list[str] = []
    mode = InputMode.SPARK if kind == "rows" else InputMode.TENSORFLOW
    cluster = run(session, train, settings, input_mode=mode, show=lines.append)
    if mode is InputMode.SPARK:
        cluster.train(frame, epochs=_MOST_EPOCHS)
    cluster.shutdown()
    (told,) = [line for line in lines if line.startswith("[0] images/s ")]
    return float(told.split()[-1])


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
