"""Line charts as inline SVG, drawn by hand: no script, no font, no external image.

Colours come from the page's CSS variables, so that one drawing works in both light and dark mode.
Each line also has its own dash pattern and its name at its end, so that no reader needs colour.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_guard.evals.report.excerpt import visible

# In CSS pixels, a chart is about as wide as a phone, so that its text is never scaled down much.
WIDTH, HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 94, 28, 34
_LABEL_GAP = 31  # two lines of text and some space
STYLES = 6  # CSS classes s0..s5


@dataclass(frozen=True, slots=True)
class Line:
    """One curve.

    Attributes:
        label: Name, written at the line's end.
        values: One value per iteration, or per position in ``at``.
        style: Number of the line's CSS class, modulo `STYLES`.
        raw: The unsmoothed values, drawn faintly behind the line.
        band: Lower and upper bound for each value, drawn as an area behind the line.
        at: Positions of the values, in ascending order, joined by steps; None for iterations. A
            line with positions is labelled at its first value, because all such lines end in the
            same corner.
        note: Text below the label, instead of the last value.
    """

    label: str
    values: Sequence[float]
    style: int
    raw: Sequence[float] = ()
    band: Sequence[tuple[float, float]] = ()
    at: Sequence[float] | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """The horizontal axis: name, range and ticks, on a logarithmic scale if ``log``."""

    name: str
    ends: tuple[float, float]
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the relative position of a value on the axis, from 0 to 1."""
        low, high, here = self.ends[0], self.ends[1], max(value, self.ends[0])
        if self.log:
            return math.log(here / low) / math.log(high / low)
        return (here - low) / max(1e-9, high - low)


def iterations(length: int) -> Axis:
    """Build the axis of a training run of this many iterations."""
    step = next((s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500) if length / s <= 5), 1000)
    ticks = [1, *range(step, length + 1, step)] if step > 1 else range(1, length + 1)
    return Axis("iteration", (1, max(2, length)), [(tick, str(tick)) for tick in ticks])


def line_chart(
    lines: Sequence[Line],
    *,
    describe: str,
    show: Callable[[float], str],
    values: str = "",
    least_top: float = 0.0,
    axis: Axis | None = None,
) -> str:
    """Draw a line chart as an SVG element.

    Args:
        lines: The curves; those without values are left out.
        describe: Description for readers who cannot see the chart.
        show: Formats a value, at an axis or at a line's end.
        values: Name of the vertical axis, written above it.
        least_top: Minimum upper end of the value axis, no matter how small the values.
        axis: The horizontal axis. Defaults to the iterations.
    """
    lines = [line for line in lines if line.values]
    length = max((len(line.values) for line in lines), default=1)
    highest = max((v for line in lines for v in (*line.values, *line.raw)), default=1.0)
    top = _nice_top(max(highest, least_top, 0.0))
    scale = _Scale(axis or iterations(length), top)
    parts = [_axes(scale, show), _text("tick", 0, 11, visible(values, limit=60))]
    parts += [_path("band", line, scale.area(line)) for line in lines if line.band]
    parts += [_path("raw", line, scale.path(line, line.raw)) for line in lines if line.raw]
    parts += [_path("line", line, scale.path(line, line.values)) for line in lines]
    parts += _labels(lines, scale, show)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(visible(describe, limit=2000))}">{"".join(parts)}</svg>'
    )


def smooth(values: Sequence[float], window: int = 5) -> list[float]:
    """Return the trailing mean over ``window`` iterations (fewer at the start)."""
    return [
        sum(part) / len(part)
        for part in (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    ]


@dataclass(frozen=True, slots=True)
class _Scale:
    axis: Axis
    top: float

    def x(self, value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * self.axis.share(value)

    def y(self, value: float) -> float:
        share = min(max(value / self.top, 0.0), 1.0)
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share

    def path(self, line: Line, values: Sequence[float]) -> str:
        if line.at is None:
            points = (f"{self.x(i):.1f} {self.y(value):.1f}" for i, value in enumerate(values, 1))
            return "M" + "L".join(points)
        places = zip(line.at, values, strict=True)
        steps = (f"H{self.x(at):.1f}V{self.y(value):.1f}" for at, value in places)
        return f"M{self.x(line.at[0]):.1f} {self.y(values[0]):.1f}{''.join(steps)}"

    def area(self, line: Line) -> str:
        there = [f"{self.x(i):.1f} {self.y(high):.1f}" for i, (_, high) in enumerate(line.band, 1)]
        back = [f"{self.x(i):.1f} {self.y(low):.1f}" for i, (low, _) in enumerate(line.band, 1)]
        return "M" + "L".join([*there, *reversed(back)]) + "Z"


def _path(kind: str, line: Line, drawn: str) -> str:
    return f'<path class="{kind} s{line.style % STYLES}" d="{drawn}"/>'


def _axes(scale: _Scale, show: Callable[[float], str]) -> str:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = scale.y(share * scale.top)
        kind = "axis" if share == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{_LEFT} {y:.1f}H{right}"/>')
        parts.append(_text("tick", _LEFT - 6, y + 4, show(share * scale.top), "end"))
    for value, name in scale.axis.ticks:
        parts.append(f'<path class="axis" d="M{scale.x(value):.1f} {bottom}v4"/>')
        parts.append(_text("tick", scale.x(value), bottom + 17, name, "middle"))
    parts.append(_text("tick", (_LEFT + right) / 2, HEIGHT - 3, scale.axis.name, "middle"))
    return "".join(parts)


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}>{html.escape(text)}</text>'


def _labels(lines: Sequence[Line], scale: _Scale, show: Callable[[float], str]) -> list[str]:
    wanted = [scale.y(line.values[-1 if line.at is None else 0]) for line in lines]
    placed = spread(wanted, _LABEL_GAP, _TOP + 8, HEIGHT - _BOTTOM - 12)
    left = WIDTH - _RIGHT + 9
    parts = []
    for line, end, at in zip(lines, wanted, placed, strict=True):
        style = f"s{line.style % STYLES}"
        label = visible(line.label, limit=40)
        label = label if len(label) <= 13 else f"{label[:6]}…{label[-6:]}"
        if line.at is None:
            x = scale.x(len(line.values))
            parts.append(f'<circle class="dot {style}" cx="{x:.1f}" cy="{end:.1f}" r="3"/>')
        parts.append(_text(f"label {style}", left, at - 2, label))
        parts.append(_text("value", left, at + 12, line.note or show(line.values[-1])))
    return parts


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions at least ``gap`` apart if there is room, keeping their order."""
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
