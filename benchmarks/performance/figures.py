"""Pictures of the model's predictions."""

from collections.abc import Mapping, Sequence

import matplotlib.figure

from inception.results import pictures

_PAYS = 1.05  # below this speed-up compression is not worth having


def draw_throughput(found: Mapping[str, Mapping[str, Mapping[int, float]]], path: str) -> None:
    """Draws images a second, by net, exchange and number of workers, into a PNG file."""
    figure = matplotlib.figure.Figure((4.2 * len(found), 3.6), layout="constrained")
    for axes, (net, lines) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        for exchange, points in lines.items():
            axes.plot(list(points), list(points.values()), marker="o", markersize=3, label=exchange)
        axes.set(title=net, xlabel="workers", ylabel="images/s", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    axes.legend()
    pictures.save(figure, path)


def draw_speed_up(
    bandwidths: Sequence[float], found: Mapping[str, Sequence[float]], workers: int, path: str
) -> None:
    """Draws the speed-up of each net over the bandwidth in Gbit/s into a PNG file."""
    figure = matplotlib.figure.Figure((6, 3.8), layout="constrained")
    axes = figure.subplots()
    for net, speed_ups in found.items():
        axes.plot(bandwidths, speed_ups, label=net)
    axes.axhline(_PAYS, color="gray", linestyle=":")
    axes.set(
        title=f"{workers} workers",
        xlabel="Gbit/s of a machine",
        ylabel="ternary to float32, images/s",
    )
    axes.set(xscale="log", yscale="log")
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.grid(alpha=0.3)
    axes.legend()
    pictures.save(figure, path)


def where_it_pays(bandwidths: Sequence[float], speed_ups: Sequence[float]) -> str:
    """Says up to which of the bandwidths, in Gbit/s, compression pays."""
    pays = [b for b, ratio in zip(bandwidths, speed_ups, strict=True) if ratio >= _PAYS]
    if not pays:
        return f"at no bandwidth from {min(bandwidths):.3g} Gbit/s on"
    end = max(pays)
    limit = " and beyond" if end == max(bandwidths) else ""
    return f"up to {end:.3g} Gbit/s{limit}"
