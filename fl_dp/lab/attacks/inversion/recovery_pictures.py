"""Pictures of an experiment: recovery against noise and epsilon, other resistance, images.

Each function returns False without matplotlib.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_dp.app.pictures import (
    COLOURS,
    PALE,
    equal_panels,
    in_lines,
    new_picture,
    nudge,
    save_picture,
)
from fl_dp.app.settings.recovery import THREATS, WITH_NOISE
from fl_dp.guarantee import grouped

from .recovery_results import CellResult, Summary, strongest
from .registry import WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer

_PANEL = 4.2  # inches
_EXACT = 50.0  # decibels: no eye sees a difference above
_BASELINES = (
    ("mean_image", "guess: the mean image", "--"),
    ("nearest", "nearest other image", ":"),
)
_NETWORKS = {"plain": "plain", "dropout": "dropout 0.5", "batch_norm": "batch statistics"}


def draw_recovery(summaries: Sequence[Summary], target: Path, *, title: str) -> bool:
    """Draw PSNR over the noise multiplier and over epsilon, one line per threat model.

    At each noise the attack with the least MSE counts. Bars are the standard deviation over seeds.
    Only summaries with noise, and those of the raw update, are drawn. Epsilons of different
    promises have a panel each.
    """
    in_noise = [summary for summary in summaries if summary.part == "noise"]
    noisy = [summary for summary in in_noise if summary.threat in WITH_NOISE]
    raw = [summary for summary in in_noise if summary.threat == "raw"]
    promises = grouped(noisy, lambda summary: summary.guarantee.terms)
    picture = equal_panels(1 + len(promises), (_PANEL, _PANEL)) if noisy else None
    if picture is None:
        return False
    figure, (by_noise, *by_epsilon) = picture
    _draw_recovery(by_noise, noisy, raw, "noise_multiplier")
    by_noise.set(xlabel="noise multiplier", title=title)
    epsilons = [summary.epsilon for summary in noisy]
    for axes, (terms, promised) in zip(by_epsilon, promises.items(), strict=True):
        _draw_recovery(axes, promised, raw, "epsilon")
        axes.set(
            xlabel="epsilon of this one round",
            title=in_lines(f"Against epsilon {terms}"),
            xlim=(0.5 * min(*epsilons, 1.0), 2.0 * max(epsilons)),
        )
        # The range that people call private; recovery fails at far larger epsilons.
        axes.axvspan(axes.get_xlim()[0], 10.0, color=COLOURS[2], alpha=0.12)
        axes.text(1.0, _EXACT + 5.0, "up to 10", color=COLOURS[2], fontsize=8)
    for axes in by_epsilon:
        axes.title.set_fontsize(9)
    save_picture(figure, target)
    return True


def _draw_recovery(
    axes: Axes, noisy: Sequence[Summary], raw: Sequence[Summary], column: str
) -> None:
    """Draw PSNR over a number of `Summary`, one line per threat model."""
    threats = list(dict.fromkeys(summary.threat for summary in noisy))
    for number, threat in enumerate(threats):
        best = strongest([summary for summary in noisy if summary.threat == threat])
        colour = COLOURS[WITH_NOISE.index(threat) % len(COLOURS)]
        nudge(_line(axes, best, column, colour, WORDS[threat]), number, len(threats))
    _baselines(axes, noisy)
    if raw:
        height = max(map(_height, raw))
        label = "no protection"
        if height >= _EXACT:
            label += f" ({_EXACT:g} dB or more)"
        axes.axhline(height, color=PALE, linewidth=1.0, label=label)
    axes.set(xscale="log", ylabel="PSNR in dB")
    axes.set_ylim(0.0, _EXACT + 15.0)  # room for words


def draw_resistance(summaries: Sequence[Summary], target: Path, *, title: str) -> bool:
    """Draw PSNR without noise, against batch size, local epochs and kinds of network."""
    parts: dict[str, list[Summary]] = {"batch": [], "epochs": [], "network": []}
    for summary in summaries:
        if summary.part in parts:
            parts[summary.part].append(summary)
    picture = new_picture((1.0, 1.0, 1.2), size=(11.0, 3.8)) if all(parts.values()) else None
    if picture is None:
        return False
    figure, (batch, epochs, network) = picture
    _resistance_lines(batch, parts["batch"], "records", "images of the update")
    _resistance_lines(epochs, parts["epochs"], "epochs", "local steps on one image")
    _resistance_bars(network, parts["network"])
    batch.set_title(title)
    drawn = [*parts["batch"], *parts["epochs"], *parts["network"]]
    tops = [_height(summary) + summary.deviations["psnr"] for summary in drawn]
    highest = max((top for top in tops if math.isfinite(top)), default=0.0)  # NaN of one image
    for axes in (batch, epochs, network):
        axes.set_ylim(0.0, highest + 3.0)
    save_picture(figure, target)
    return True


def _resistance_lines(axes: Axes, summaries: Sequence[Summary], key: str, label: str) -> None:
    """Draw one line per attack over the values of `key`."""
    for number, attack in enumerate(dict.fromkeys(summary.attack for summary in summaries)):
        of_attack = [summary for summary in summaries if summary.attack == attack]
        _line(axes, of_attack, key, COLOURS[number], attack.replace("_", " "))
    _baselines(axes, summaries)
    axes.set(xscale="log", xlabel=label, ylabel="PSNR in dB")
    ticks = sorted({getattr(summary, key) for summary in summaries})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


def _resistance_bars(axes: Axes, summaries: Sequence[Summary]) -> None:
    """Draw one bar per kind of network and number of records."""
    best = strongest(summaries, by=lambda summary: (summary.network, summary.records))
    names = [f"{_NETWORKS[summary.network]},\n{_count(summary.records)}" for summary in best]
    heights = [_height(summary) for summary in best]
    spread = [summary.deviations["psnr"] for summary in best]
    axes.bar(range(len(best)), heights, yerr=spread, color=COLOURS[0], capsize=3)
    axes.set_xticks(range(len(best)), names, fontsize=8)
    _baselines(axes, summaries)


def draw_images(
    results: Mapping[tuple[str, float], CellResult], target: Path, *, title: str
) -> bool:
    """Draw one image per setting of one seed, by threat and noise (0: none)."""
    levels = sorted({level for _, level in results})
    attacked = {threat for threat, _ in results}
    threats = [threat for threat in THREATS if threat in attacked]
    picture = new_picture(size=(1.0 * (len(levels) + 3) + 2.2, 1.18 * len(threats) + 0.6))
    if picture is None or not results:
        return False
    figure, [only] = picture
    only.remove()
    noises = [f"noise {level:g}" if level else "no noise" for level in levels]
    heads = ["true", *noises, "mean image", "nearest"]
    grid = figure.subplots(len(threats), len(heads), squeeze=False)
    for row, threat in enumerate(threats):
        tiles = _tiles(results, threat, levels)
        for column, (axes, tile) in enumerate(zip(grid[row], tiles, strict=True)):
            axes.set_axis_off()
            if row == 0:
                axes.set_title(heads[column], fontsize=9)
            if tile is not None:
                _tile(axes, *tile)
        grid[row][0].text(
            -0.12,
            0.5,
            textwrap.fill(WORDS[threat], 24),
            transform=grid[row][0].transAxes,
            ha="right",
            va="center",
            fontsize=8,
        )
    figure.suptitle(f"{title}; below each image its PSNR in dB", fontsize=10)
    figure.savefig(target, dpi=110)
    return True


def _tiles(
    results: Mapping[tuple[str, float], CellResult], threat: str, levels: Sequence[float]
) -> list[tuple[NDArray[np.float32], float | None] | None]:
    """A row's images with their PSNR in dB; None where nothing was attacked."""
    example = next(result for (name, _), result in results.items() if name == threat)
    tiles: list[tuple[NDArray[np.float32], float | None] | None] = [(example.truth[0], None)]
    for level in levels:
        result = results.get((threat, level))
        if result is None:
            tiles.append(None)
        else:
            tiles.append((result.recovered[0], result.rows[0]["psnr"]))
    tiles.append((example.mean, example.rows[0]["mean_image_psnr"]))
    tiles.append((example.nearest[0], example.rows[0]["nearest_psnr"]))
    return tiles


def _line(
    axes: Axes, summaries: Sequence[Summary], key: str, colour: str, label: str
) -> ErrorbarContainer:
    value = attrgetter(key)
    points = [summary for summary in summaries if math.isfinite(value(summary))]
    points.sort(key=value)
    return axes.errorbar(
        [value(summary) for summary in points],
        [_height(summary) for summary in points],
        yerr=[summary.deviations["psnr"] for summary in points],
        color=colour,
        label=label,
        marker="o",
        markersize=4,
        capsize=3,
        linewidth=1.5,
    )


def _baselines(axes: Axes, summaries: Sequence[Summary]) -> None:
    for name, label, style in _BASELINES:
        height = float(np.mean([summary.means[f"{name}_psnr"] for summary in summaries]))
        axes.axhline(height, color="black", linewidth=1.0, linestyle=style, label=label)


def _tile(axes: Axes, image: NDArray[np.float32], decibels: float | None) -> None:
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    axes.imshow(pixels, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    if decibels is not None:
        text = f"{decibels:.0f}" if decibels < _EXACT else f"> {_EXACT:.0f}"
        axes.text(0.5, -0.02, text, transform=axes.transAxes, ha="center", va="top", fontsize=8)


def _count(records: int) -> str:
    return "1 image" if records == 1 else f"{records} images"


def _height(summary: Summary) -> float:
    return min(summary.means["psnr"], _EXACT)
