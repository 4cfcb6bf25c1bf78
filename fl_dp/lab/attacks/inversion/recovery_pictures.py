"""Pictures of an experiment: recovery against noise and epsilon, what resists, and the images.

Each needs matplotlib, and returns False where it is not installed.
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

from fl_dp.app.pictures import COLOURS, PALE, new_picture, nudge, save_picture
from fl_dp.promise import delta_rounded_up

from .recovery_results import Found, Summary, strongest
from .registry import THREATS, WITH_NOISE, WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer

_EXACT = 50.0  # decibels: no eye tells better ones apart
_BASELINES = (
    ("mean_image", "guess: the mean image", "--"),
    ("nearest", "nearest other image", ":"),
)
_NETWORKS = {"plain": "plain", "dropout": "dropout 0.5", "batch_norm": "batch statistics"}


def draw_recovery(summaries: Sequence[Summary], target: Path, *, title: str) -> bool:
    """Draw PSNR over the noise multiplier and over epsilon, one line a threat model.

    At each noise the attack with the least MSE counts. Bars are the standard deviation over seeds.

    Args:
        summaries: Of the whole experiment; those with noise are drawn, and the raw update.
        target: The PNG to write.
        title: What was attacked.
    """
    noisy = [each for each in summaries if each.part == "noise" and each.threat in WITH_NOISE]
    made = new_picture((1.0, 1.0), size=(11.0, 4.6)) if noisy else None
    if made is None:
        return False
    figure, (by_noise, by_epsilon) = made
    threats = list(dict.fromkeys(each.threat for each in noisy))
    for nth, threat in enumerate(threats):
        best = strongest([each for each in noisy if each.threat == threat])
        colour = COLOURS[WITH_NOISE.index(threat) % len(COLOURS)]
        for axes, key in ((by_noise, "noise_multiplier"), (by_epsilon, "epsilon")):
            nudge(_line(axes, best, key, colour, WORDS[threat]), nth, len(threats))
    for axes in (by_noise, by_epsilon):
        _baselines(axes, noisy)
        raw = [each for each in summaries if (each.part, each.threat) == ("noise", "raw")]
        if raw:
            reached = max(_shown(each) for each in raw)
            said = "no protection" + (f" ({_EXACT:g} dB or more)" if reached >= _EXACT else "")
            axes.axhline(reached, color=PALE, linewidth=1.0, label=said)
        axes.set(xscale="log", ylabel="PSNR in dB")
        axes.set_ylim(0.0, _EXACT + 15.0)  # room for words
    by_noise.set(xlabel="noise multiplier", title=title)
    least, most = (end(each.epsilon for each in noisy) for end in (min, max))
    by_epsilon.set(
        xlabel=f"epsilon of this one round at delta {delta_rounded_up(noisy[0].delta)}",
        title="The same against epsilon",
        xlim=(0.5 * min(least, 1.0), 2.0 * most),
    )
    # What people call private at all; recovery has stopped long before.
    by_epsilon.axvspan(by_epsilon.get_xlim()[0], 10.0, color=COLOURS[2], alpha=0.12)
    by_epsilon.text(1.0, _EXACT + 5.0, "epsilon up to 10", color=COLOURS[2], fontsize=8)
    save_picture(figure, target)
    return True


def draw_resistance(summaries: Sequence[Summary], target: Path, *, title: str) -> bool:
    """Draw PSNR without any noise, against batch size, local epochs and kinds of network."""
    parts: dict[str, list[Summary]] = {
        part: [each for each in summaries if each.part == part]
        for part in ("batch", "epochs", "network")
    }
    made = new_picture((1.0, 1.0, 1.2), size=(11.0, 3.8)) if all(parts.values()) else None
    if made is None:
        return False
    figure, (batch, epochs, network) = made
    for axes, part, key, label in (
        (batch, "batch", "records", "images of the update"),
        (epochs, "epochs", "epochs", "local steps on one image"),
    ):
        for number, attack in enumerate(dict.fromkeys(each.attack for each in parts[part])):
            of_attack = [each for each in parts[part] if each.attack == attack]
            _line(axes, of_attack, key, COLOURS[number], attack.replace("_", " "))
        _baselines(axes, parts[part])
        axes.set(xscale="log", xlabel=label, ylabel="PSNR in dB")
        places = sorted({getattr(each, key) for each in parts[part]})
        axes.set_xticks(places, [str(each) for each in places])
        axes.minorticks_off()
    best = strongest(parts["network"], by=lambda each: (each.network, each.records))
    names = [f"{_NETWORKS[each.network]},\n{_count(each.records)}" for each in best]
    heights = [_shown(each) for each in best]
    spread = [each.deviations["psnr"] for each in best]
    network.bar(range(len(best)), heights, yerr=spread, color=COLOURS[0], capsize=3)
    network.set_xticks(range(len(best)), names, fontsize=8)
    _baselines(network, parts["network"])
    batch.set_title(title)
    drawn = [each for of_part in parts.values() for each in of_part]
    tops = [_shown(each) + each.deviations["psnr"] for each in drawn]
    highest = max((top for top in tops if math.isfinite(top)), default=0.0)  # NaN of one image
    for axes in (batch, epochs, network):
        axes.set_ylim(0.0, highest + 3.0)
    save_picture(figure, target)
    return True


def draw_images(found: Mapping[tuple[str, float], Found], target: Path, *, title: str) -> bool:
    """Draw what a person sees: one image under each threat model and noise.

    Args:
        found: By threat and noise multiplier; 0 for none. All of one seed.
        target: The PNG to write.
        title: What was attacked.
    """
    levels = sorted({level for _, level in found})
    threats = [threat for threat in THREATS if any(one == threat for one, _ in found)]
    made = new_picture(size=(1.0 * (len(levels) + 3) + 2.2, 1.18 * len(threats) + 0.6))
    if made is None or not found:
        return False
    figure, [only] = made
    only.remove()
    heads = ["true", *(f"noise {each:g}" if each else "no noise" for each in levels)]
    heads += ["mean image", "nearest"]
    grid = figure.subplots(len(threats), len(heads), squeeze=False)
    for row, threat in enumerate(threats):
        some = next(each for (one, _), each in found.items() if one == threat)
        shown: list[tuple[NDArray[np.float32], float | None] | None] = [(some.truth[0], None)]
        for level in levels:
            one = found.get((threat, level))
            shown.append(None if one is None else (one.recovered[0], one.rows[0]["psnr"]))
        shown.append((some.mean, some.rows[0]["mean_image_psnr"]))
        shown.append((some.nearest[0], some.rows[0]["nearest_psnr"]))
        for column, (axes, tile) in enumerate(zip(grid[row], shown, strict=True)):
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


def _line(
    axes: Axes, summaries: Sequence[Summary], key: str, colour: str, label: str
) -> ErrorbarContainer:
    value = attrgetter(key)
    each = sorted((one for one in summaries if math.isfinite(value(one))), key=value)
    return axes.errorbar(
        [value(one) for one in each],
        [_shown(one) for one in each],
        yerr=[one.deviations["psnr"] for one in each],
        color=colour,
        label=label,
        marker="o",
        markersize=4,
        capsize=3,
        linewidth=1.5,
    )


def _baselines(axes: Axes, summaries: Sequence[Summary]) -> None:
    for name, label, style in _BASELINES:
        height = float(np.mean([each.means[f"{name}_psnr"] for each in summaries]))
        axes.axhline(height, color="black", linewidth=1.0, linestyle=style, label=label)


def _tile(axes: Axes, image: NDArray[np.float32], decibels: float | None) -> None:
    shown = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    axes.imshow(shown, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    if decibels is not None:
        text = f"{decibels:.0f}" if decibels < _EXACT else f"> {_EXACT:.0f}"
        axes.text(0.5, -0.02, text, transform=axes.transAxes, ha="center", va="top", fontsize=8)


def _count(records: int) -> str:
    return "1 image" if records == 1 else f"{records} images"


def _shown(summary: Summary) -> float:
    return min(summary.means["psnr"], _EXACT)
