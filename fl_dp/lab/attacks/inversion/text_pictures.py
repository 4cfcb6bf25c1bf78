"""Pictures of text that was recovered: shares of it against noise, and what a person reads.

Each needs matplotlib, and returns False where it is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fl_dp.app.pictures import COLOURS, PALE, new_picture, nudge, save_picture

from .recovery_results import Found, Summary, strongest
from .registry import THREATS, WITH_NOISE, WORDS

_PANELS = (("in_place", "characters in place"), ("occurring", "which characters occur"))
_SHOWN = 40  # characters of a line


def draw_text_recovery(summaries: Sequence[Summary], target: Path, *, title: str) -> bool:
    """Draw the share of characters in place, and of those that occur, over the noise multiplier.

    Bars are the standard deviation over seeds.

    Args:
        summaries: Of the whole experiment; those with noise are drawn, and the raw update.
        target: The PNG to write.
        title: What was attacked.
    """
    noisy = [each for each in summaries if each.threat in WITH_NOISE]
    made = new_picture((1.0, 1.0), size=(11.0, 4.6)) if noisy else None
    if made is None:
        return False
    figure, panels = made
    for axes, (score, words) in zip(panels, _PANELS, strict=True):
        threats = list(dict.fromkeys(each.threat for each in noisy))
        for nth, threat in enumerate(threats):
            best = strongest([each for each in noisy if each.threat == threat])
            drawn = axes.errorbar(
                [each.noise_multiplier for each in best],
                [100 * each.means[score] for each in best],
                yerr=[100 * each.deviations[score] for each in best],
                color=COLOURS[WITH_NOISE.index(threat) % len(COLOURS)],
                label=WORDS[threat],
                marker="o",
                markersize=4,
                capsize=3,
            )
            nudge(drawn, nth, len(threats))
        for raw in (each for each in summaries if each.threat == "raw"):
            axes.axhline(100 * raw.means[score], color=PALE, linewidth=1.0, label="no protection")
        guess = 100 * float(np.mean([each.means[f"guess_{score}"] for each in noisy]))
        axes.axhline(guess, color="black", linestyle="--", linewidth=1.0, label="without a look")
        axes.set(xscale="log", xlabel="noise multiplier", ylabel=f"{words}, %", ylim=(-3.0, 103.0))
    panels[0].set_title(title)
    save_picture(figure, target)
    return True


def draw_texts(found: Mapping[tuple[str, float], Found], target: Path, *, title: str) -> bool:
    """Draw what a person reads: the beginning of one text under each threat model and noise.

    Args:
        found: By threat and noise multiplier; 0 for none. All of one seed.
        target: The PNG to write.
        title: What was attacked.
    """
    places = sorted(found, key=lambda place: (THREATS.index(place[0]), place[1]))
    made = new_picture(size=(10.5, 0.24 * (len(places) + 3))) if places else None
    if made is None:
        return False
    figure, [axes] = made
    axes.set_axis_off()
    lines = [("true", str(found[places[0]].rows[0]["true"]))]
    for threat, level in places:
        noise = f", noise {level:g}" if level else ""
        text = str(found[threat, level].rows[0]["recovered"])
        lines.append((f"{WORDS[threat]}{noise}", text))
    for number, (words, text) in enumerate(lines):
        height = 1.0 - (number + 0.5) / len(lines)
        axes.text(0.46, height, words, ha="right", va="center", fontsize=8)
        # A dollar sign would begin a formula.
        shown = text[:_SHOWN].replace("$", r"\$") if text.strip() else "(blanks alone)"
        axes.text(0.48, height, shown, va="center", fontsize=9, family="monospace")
    figure.suptitle(f"{title}; the first {_SHOWN} characters, a slash for a new line", fontsize=10)
    figure.savefig(target, dpi=110)
    return True
