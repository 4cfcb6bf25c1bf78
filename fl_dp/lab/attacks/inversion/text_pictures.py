"""Pictures of recovered text: shares of it against noise, and the texts.

Each function returns False without matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fl_dp.app.pictures import COLOURS, PALE, new_picture, nudge, save_picture
from fl_dp.app.settings.recovery import THREATS, WITH_NOISE

from .recovery_results import CellResult, Summary, strongest
from .registry import WORDS

_PANELS = (("in_place", "characters in place"), ("occurring", "which characters occur"))
_EXCERPT = 40  # characters of a line


def draw_text_recovery(summaries: Sequence[Summary], target: Path, *, title: str) -> bool:
    """Draw the shares of characters in place, and of those that occur, over the noise multiplier.

    Bars are the standard deviation over seeds. Only summaries with noise, and those of the raw
    update, are drawn.
    """
    noisy = [summary for summary in summaries if summary.threat in WITH_NOISE]
    raw = [summary for summary in summaries if summary.threat == "raw"]
    picture = new_picture((1.0, 1.0), size=(11.0, 4.6)) if noisy else None
    if picture is None:
        return False
    figure, panels = picture
    threats = list(dict.fromkeys(summary.threat for summary in noisy))
    for axes, (score, words) in zip(panels, _PANELS, strict=True):
        for number, threat in enumerate(threats):
            best = strongest([summary for summary in noisy if summary.threat == threat])
            line = axes.errorbar(
                [summary.noise_multiplier for summary in best],
                [100 * summary.means[score] for summary in best],
                yerr=[100 * summary.deviations[score] for summary in best],
                color=COLOURS[WITH_NOISE.index(threat) % len(COLOURS)],
                label=WORDS[threat],
                marker="o",
                markersize=4,
                capsize=3,
            )
            nudge(line, number, len(threats))
        for summary in raw:
            height = 100 * summary.means[score]
            axes.axhline(height, color=PALE, linewidth=1.0, label="no protection")
        guess = 100 * float(np.mean([summary.means[f"guess_{score}"] for summary in noisy]))
        axes.axhline(guess, color="black", linestyle="--", linewidth=1.0, label="without a look")
        axes.set(xscale="log", xlabel="noise multiplier", ylabel=f"{words}, %", ylim=(-3.0, 103.0))
    panels[0].set_title(title)
    save_picture(figure, target)
    return True


def draw_texts(
    results: Mapping[tuple[str, float], CellResult], target: Path, *, title: str
) -> bool:
    """Draw one text's beginning per setting of one seed, by threat and noise (0: none)."""
    settings = sorted(results, key=lambda setting: (THREATS.index(setting[0]), setting[1]))
    picture = new_picture(size=(10.5, 0.24 * (len(settings) + 3))) if settings else None
    if picture is None:
        return False
    figure, [axes] = picture
    axes.set_axis_off()
    lines = [("true", str(results[settings[0]].rows[0]["true"]))]
    for threat, level in settings:
        noise = f", noise {level:g}" if level else ""
        text = str(results[threat, level].rows[0]["recovered"])
        lines.append((f"{WORDS[threat]}{noise}", text))
    for number, (words, text) in enumerate(lines):
        height = 1.0 - (number + 0.5) / len(lines)
        axes.text(0.46, height, words, ha="right", va="center", fontsize=8)
        # A dollar sign would begin a formula.
        excerpt = text[:_EXCERPT].replace("$", r"\$") if text.strip() else "(blanks alone)"
        axes.text(0.48, height, excerpt, va="center", fontsize=9, family="monospace")
    caption = f"{title}; the first {_EXCERPT} characters, a slash for a new line"
    figure.suptitle(caption, fontsize=10)
    figure.savefig(target, dpi=110)
    return True
