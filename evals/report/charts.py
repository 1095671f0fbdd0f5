"""Line charts as inline SVG, drawn by hand: no script, no font, no picture from elsewhere.

Colours come from the page's CSS variables, so that one drawing serves light and dark. Each line
also has its own dash pattern, and its name stands at its end: colour is never the only carrier.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# One chart is about as wide as a phone, in CSS pixels, so that its text is never scaled down much.
WIDTH, HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 94, 14, 34
_LABEL_GAP = 31  # two lines of text and some air
STYLES = 6  # CSS classes s0..s5


@dataclass(frozen=True, slots=True)
class Line:
    """One curve.

    Attributes:
        label: Name, written at the line's end; the caller has made it safe to show.
        values: One value per iteration.
        style: Which of the `STYLES` classes draws it.
        raw: The unsmoothed values, drawn faintly behind.
        band: Lower and upper end for each value, drawn as an area behind.
    """

    label: str
    values: Sequence[float]
    style: int
    raw: Sequence[float] = ()
    band: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A value from elsewhere to compare with: at an iteration, else a level across the chart."""

    value: float
    iteration: int | None = None


def line_chart(
    lines: Sequence[Line],
    *,
    describe: str,
    show: Callable[[float], str],
    least_top: float = 0.0,
    marks: Sequence[Mark] = (),
) -> str:
    """Return one SVG element.

    Args:
        lines: The curves; those without values are left out.
        describe: What it shows, for those who cannot see it.
        show: Writes a value, at an axis or at a line's end.
        least_top: The value axis reaches at least this far, however small the values.
        marks: Drawn as diamonds and dotted levels; those later than the chart are left out.
    """
    lines = [line for line in lines if line.values]
    length = max((len(line.values) for line in lines), default=1)
    highest = max((v for line in lines for v in (*line.values, *line.raw)), default=1.0)
    scale = _Scale(length, _nice_top(max(highest, least_top, *(m.value for m in marks), 0.0)))
    parts = [_axes(scale, show)]
    for line in lines:
        if line.band:
            parts.append(f'<path class="band s{line.style % STYLES}" d="{scale.area(line.band)}"/>')
    parts += [_mark(mark, scale) for mark in marks]
    for line in lines:
        if line.raw:
            parts.append(f'<path class="raw s{line.style % STYLES}" d="{scale.path(line.raw)}"/>')
    for line in lines:
        parts.append(f'<path class="line s{line.style % STYLES}" d="{scale.path(line.values)}"/>')
    parts += _labels(lines, scale, show)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(describe)}">'
        f"{''.join(parts)}</svg>"
    )


def smooth(values: Sequence[float], window: int = 5) -> list[float]:
    """Mean over the last ``window`` iterations (fewer at the start): never looks ahead."""
    return [
        sum(part) / len(part)
        for part in (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    ]


@dataclass(frozen=True, slots=True)
class _Scale:
    length: int
    top: float

    def x(self, index: int) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * index / max(1, self.length - 1)

    def y(self, value: float) -> float:
        share = min(max(value / self.top, 0.0), 1.0)
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share

    def path(self, values: Sequence[float]) -> str:
        points = (f"{self.x(i):.1f} {self.y(value):.1f}" for i, value in enumerate(values))
        return "M" + "L".join(points)

    def area(self, band: Sequence[tuple[float, float]]) -> str:
        there = [f"{self.x(i):.1f} {self.y(high):.1f}" for i, (_, high) in enumerate(band)]
        back = [f"{self.x(i):.1f} {self.y(low):.1f}" for i, (low, _) in enumerate(band)]
        return "M" + "L".join([*there, *reversed(back)]) + "Z"


def _mark(mark: Mark, scale: _Scale) -> str:
    y = scale.y(mark.value)
    if mark.iteration is None:
        return f'<path class="claim level" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
    if not 1 <= mark.iteration <= scale.length:
        return ""
    x = scale.x(mark.iteration - 1)
    return f'<path class="claim" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"/>'


def _axes(scale: _Scale, show: Callable[[float], str]) -> str:
    right = WIDTH - _RIGHT
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = scale.y(share * scale.top)
        kind = "axis" if share == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{_LEFT} {y:.1f}H{right}"/>')
        text = html.escape(show(share * scale.top))
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">')
        parts.append(f"{text}</text>")
    ticks = [(scale.x(iteration - 1), str(iteration)) for iteration in _ticks(scale.length)]
    below = ticks_below(ticks, HEIGHT - _BOTTOM, HEIGHT, (_LEFT + right) / 2, "iteration")
    return "".join([*parts, *below])


def ticks_below(
    ticks: Sequence[tuple[float, str]], y: float, height: float, middle: float, name: str
) -> list[str]:
    """The horizontal axis's marks and its name, as SVG.

    Args:
        ticks: (place, text) of each mark.
        y: Of the axis.
        height: Of the chart; the name stands at its foot.
        middle: Of the axis, where the name stands.
        name: What the axis shows.
    """
    parts = []
    for x, text in ticks:
        parts.append(f'<path class="axis" d="M{x:.1f} {y}v4"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y + 17}" ')
        parts.append(f'text-anchor="middle">{text}</text>')
    parts.append(f'<text class="tick" x="{middle}" y="{height - 3}" ')
    parts.append(f'text-anchor="middle">{name}</text>')
    return parts


def _labels(lines: Sequence[Line], scale: _Scale, show: Callable[[float], str]) -> list[str]:
    wanted = [scale.y(line.values[-1]) for line in lines]
    placed = spread(wanted, _LABEL_GAP, _TOP + 8, HEIGHT - _BOTTOM - 12)
    parts = []
    for line, end, at in zip(lines, wanted, placed, strict=True):
        x = scale.x(len(line.values) - 1)
        style = f"s{line.style % STYLES}"
        label = line.label if len(line.label) <= 13 else f"{line.label[:6]}…{line.label[-6:]}"
        parts.append(f'<circle class="dot {style}" cx="{x:.1f}" cy="{end:.1f}" r="3"/>')
        left = WIDTH - _RIGHT + 9
        parts.append(f'<text class="label {style}" x="{left}" y="{at - 2:.1f}">')
        parts.append(f"{html.escape(label)}</text>")
        parts.append(f'<text class="value" x="{left}" y="{at + 12:.1f}">')
        parts.append(f"{html.escape(show(line.values[-1]))}</text>")
    return parts


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart to at least ``gap`` where there is room, keeping their order."""
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = list(wanted)
    floor = low
    for index in order:
        placed[index] = floor = max(floor, min(max(wanted[index], low), high))
        floor += gap
    ceiling = high
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


def _nice_top(highest: float) -> float:
    if highest <= 0.5:
        return 0.5 if highest > 0.25 else 0.25 if highest > 0.1 else 0.1
    if highest <= 1:
        return 1.0
    unit = 10 ** math.floor(math.log10(highest))
    return float(next(m * unit for m in (1, 2, 4, 6, 8, 10) if m * unit >= highest))


def _ticks(length: int) -> list[int]:
    step = next((s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500) if length / s <= 5), 1000)
    ticks = [1, *range(step, length + 1, step)] if step > 1 else list(range(1, length + 1))
    return ticks
