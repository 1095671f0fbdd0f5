"""Benchmark results as a docs page: one table and one plot per comparison.

python -m grpo_guard.evals.studies.bench.page docs/benchmarks/cpu.json -o docs/benchmarks/index.md
"""

import argparse
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_guard.evals.results import write_text

INTRO = """# Benchmarks

Written by `python -m grpo_guard.evals.studies.bench.page` from the JSON files in this folder, which
`grpo-guard bench` made. Each table is one run in one process. A ratio is a line's fastest round
over that of the first line, with the range within single rounds. Seconds are CPU seconds with one
thread, otherwise wall time. Memory is the peak beyond what the process held before. The sums of the
head are compiled before the first round, if there is a C++ compiler.
"""
REPEATED = " N=2048 "
"""Marks a second head size whose ratios equal the first's; it appears only in the JSON."""
BAR, ROW, LEFT, RIGHT = 380, 26, 330, 90


def page(files: Sequence[Path]) -> tuple[str, dict[str, str]]:
    """Return (Markdown, SVG files by name) for results of `studies.bench.run.bench`."""
    parts, plots = [INTRO], {}
    for file in files:
        results = json.loads(file.read_text(encoding="utf-8"))
        versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items() if k != "machine")
        parts.append(
            f"## {results['device'].upper()}\n\n{results['machine']}; {versions}; "
            f"{results['date']}; `{file.name}`.\n"
        )
        pairs = [table for table in results["tables"] if len(table["rows"]) == 2]
        for i, table in enumerate(results["tables"]):
            if table not in pairs and REPEATED not in table["name"]:
                name = f"{file.stem}-{i}.svg"
                plots[name] = plot(table)
                parts.append(section(table, name))
        if pairs:
            parts.append(comparisons(pairs))
    return "\n".join(parts), plots


def comparisons(tables: Sequence[Mapping[str, Any]]) -> str:
    """Format comparisons of two variants as one table, with one row per comparison."""
    lines = [
        "### Two ways each",
        "",
        "| | against | ratio (range) | threads |",
        "|---|---|---:|---:|",
    ]
    for table in tables:
        first, other = table["rows"]
        between = f"{other['ratio_low']:.2f}-{other['ratio_high']:.2f}"
        name, threads = f"{table['name']}: {other['name']}", table.get("threads") or ""
        ratio = f"{other['ratio']:.2f} ({between})"
        lines.append(f"| {name} | {first['name']} | {ratio} | {threads} |")
    return "\n".join([*lines, ""])


def section(table: Mapping[str, Any], plot_name: str) -> str:
    """Format one comparison as Markdown, with a link to its plot."""
    threads = table.get("threads")
    rounds = table["rows"][0]["rounds"]
    ran = f" {threads} thread{'s' if threads != 1 else ''}, {rounds} rounds" if threads else ""
    lines = [
        f"### {table['name']}",
        "",
        f"|{ran} | seconds | ratio (range) | memory |",
        "|---|---:|---:|---:|",
    ]
    for row in table["rows"]:
        memory = "" if row["extra_mb"] is None else f"{row['extra_mb']:.0f} MB"
        lines.append(
            f"| {row['name']} | {row['seconds']:.3g} | {row['ratio']:.2f} "
            f"({row['ratio_low']:.2f}-{row['ratio_high']:.2f}) | {memory} |"
        )
    lines += ["", f"![ratios]({plot_name})", ""]
    return "\n".join(lines)


def plot(table: Mapping[str, Any]) -> str:
    """Draw the ratios as horizontal bars in an SVG that includes the numbers."""
    rows = table["rows"]
    most = max(row["ratio"] for row in rows)
    height = ROW * len(rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + BAR + RIGHT}" '
        f'height="{height}" font-family="sans-serif" font-size="13" fill="#888">'
    ]
    for i, row in enumerate(rows):
        y, width = 4 + i * ROW, max(1.0, BAR * row["ratio"] / most)
        name = html.escape(row["name"])
        colour = "#2f7d4f" if "ours" in name or name.startswith("grpo-guard") else "#8899aa"
        bar = f'x="{LEFT}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"'
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{name}</text>',
            f'<rect {bar} fill="{colour}"/>',
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 17}">{row["ratio"]:.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Benchmark results as a page of the docs.")
    parser.add_argument("files", type=Path, nargs="+", help="JSON of grpo-guard bench")
    parser.add_argument("-o", "--out", type=Path, required=True, help="Markdown file")
    args = parser.parse_args()
    text, plots = page(args.files)
    write_text(args.out, text)
    for name, svg in plots.items():
        write_text(args.out.parent / name, svg)
    print(f"wrote {args.out} and {len(plots)} plots")


if __name__ == "__main__":
    main()
