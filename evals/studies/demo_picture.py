"""The demo picture in the README: attack success by iteration, with and without the guard.

    python -m grpo_guard.evals.studies.demo_picture

Draws ``docs/demo.svg`` from ``docs/results/demo-seed-0.json``.
"""

import json
from pathlib import Path
from typing import Final

from grpo_guard.evals.report.charts import Line, line_chart, smooth
from grpo_guard.evals.results import write_text

SOURCE: Final = Path("docs/results/demo-seed-0.json")
TARGET: Final = Path("docs/demo.svg")
# A standalone picture cannot take its colours from a page, and READMEs are also read in dark mode.
STYLE: Final = """<style>
svg { background: #fcfcfa }
text { font: 12px system-ui, sans-serif; fill: #5a6068 }
.tick { font-size: 11px }
.axis, .grid { stroke: #dcdcd6; fill: none }
.line { fill: none; stroke-width: 2.25; stroke-linejoin: round }
.line.s1 { stroke: #b84a00; stroke-dasharray: 8 4 } .line.s2 { stroke: #0068a8 }
.label { font-weight: 650 } text.s1 { fill: #b84a00 } text.s2 { fill: #0068a8 }
</style>"""


def picture() -> str:
    """Draw a standalone SVG from the results of a demo."""
    runs = json.loads(SOURCE.read_text(encoding="utf-8"))["runs"]
    lines = []
    for run in runs:
        guarded = run["defence"] != "none"
        if run["attack"] != "none":
            label = "guarded" if guarded else "undefended"
            lines.append(Line(label, smooth(run["asr"]), 2 if guarded else 1))
    title = "Share of honest nodes' completions with the attacker's phrase, by iteration"
    chart = line_chart(lines, describe=title, show=lambda value: f"{value:.0%}", least_top=1.0)
    opening, inside = chart.split(">", 1)
    return f'{opening} xmlns="http://www.w3.org/2000/svg" width="570">{STYLE}{inside}\n'


if __name__ == "__main__":
    write_text(TARGET, picture())
    print(f"wrote {TARGET}")
