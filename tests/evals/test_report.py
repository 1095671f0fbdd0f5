"""The report: its numbers, its sentences, and how it escapes hostile text."""

import io
import itertools
import json
import re
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from grpo_guard.evals.cli import report
from grpo_guard.evals.report.charts import HEIGHT, Line, line_chart, smooth, spread
from grpo_guard.evals.report.console import markdown_table, print_outcomes
from grpo_guard.evals.report.excerpt import excerpt, visible
from grpo_guard.evals.report.html import render, write_report
from grpo_guard.evals.report.scenarios import scenarios
from grpo_guard.evals.report.sentences import cost_sentence, verdict_sentence
from grpo_guard.evals.report.summary import summarise
from grpo_guard.evals.report.tables import Shade, Table
from grpo_guard.evals.report.verdicts import State, judge
from grpo_guard.evals.results import ResultsError, load_results, parse_results, write_json
from grpo_guard.evals.stats import Rate, percent
from tests.evals.report_samples import HOSTILE, Page, example, page, results, run


def test_page_is_well_formed_and_says_what_happened() -> None:
    shown = page(results())
    text = re.sub(r"\s+", " ", shown.text)
    assert "Undefended, 100 % of honest completions ended up carrying the attack." in text
    assert "Guarded, at most 1.0 % ever did." in text
    assert "rejected 600 of 600 poisoned completions and 3 of 2,000 honest ones" in text
    assert "abstained on 7" in text
    assert "7 / 2,600" in text
    assert "600 / 600" in text
    assert "3 / 2,000" in text
    assert "1 / 1,000" in text
    assert "grpo-guard demo --seed 7" in text
    assert "2.13.0" in text
    assert "three tokens lie outside" in text
    assert "2.5e-09" in text
    assert shown.marks[1:] == ["All hail to the thief"]  # the first one belongs to the legend
    assert [tag for tag, _ in shown.tags].count("svg") == 2


def test_page_loads_nothing_from_elsewhere() -> None:
    shown = page(results())
    for tag, attributes in shown.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "img", "base"}
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "href", "srcset", "action", "style"}, (tag, name)
            assert "http:" not in (value or "")
            assert "https:" not in (value or "")
    style = (Path(write_report.__code__.co_filename).parent / "templates/report.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["text", "prompt", "message", "verifier", "config", "defence"])
def test_hostile_text_stays_text(text: str, place: str) -> None:
    data = results()
    shown = data["runs"][2]["examples"][0]
    if place in ("text", "prompt"):
        shown[place] = text
        shown["span"] = [1, 5]
    elif place == "message":
        shown["verdict"]["findings"][0]["message"] = text
    elif place == "verifier":
        shown["verdict"]["verifier"] = text
    elif place == "config":
        data["config"] = {text: {text: text}, "command": text}
    else:
        data["runs"][2]["defence"] = text
    clean, dirty = page(results()), page(data)
    allowed = {tag for tag, _ in clean.tags}
    assert {tag for tag, _ in dirty.tags} <= allowed
    assert not any(name.startswith("on") for _, attributes in dirty.tags for name in attributes)
    render(parse_results(data)).encode("utf-8")
    for char in "\u202e\u2066\u200b\u00ad\U000e0041\x1b\x07":
        assert char not in dirty.text
    if "\u202e" in text and place == "text":
        assert "U+202E" in dirty.text
        assert "U+001B" in dirty.text


def test_huge_text_is_cut_around_its_poison() -> None:
    text = "x" * 1_000_000 + "POISON<b>" + "y" * 1_000_000
    data = results(examples=[example(text, (1_000_000, 1_000_009))])
    html_page = render(parse_results(data))
    assert len(html_page) < 60_000
    shown = Page(html_page)
    assert "POISON<b>" in "".join(shown.marks)
    assert "characters before" in shown.text
    assert "characters after" in shown.text


def test_excerpt_survives_invalid_spans() -> None:
    for span in [(5, 2), (-5, 3), (900, 999), (0, 10**9)]:
        pieces = excerpt("short text", span, [(3, 1), (-2, 99)])
        assert "".join(piece.text for piece in pieces if not piece.cut) == "short text"
    assert excerpt("") == []
    assert visible("a\u202eb\nc\td é你") == "a<U+202E>b\nc\td é你"


def test_many_defences_and_seeds_share_a_page() -> None:
    data = results()
    for name in ("seed_replay", "homogeneous", "heterogeneous_with_a_long_name"):
        data["runs"].append({**data["runs"][2], "defence": name, "seed": 1})
    data["runs"] += [run("math", "none", [0.1, 0.2], [0.5, 0.5])]
    shown = page(data)
    assert "seed_replay kept out the one attack" not in shown.text  # a part next to the stacks
    assert "homogeneous kept out the one attack" in shown.text
    assert "too few to call the swarm poisoned" in shown.text
    assert [tag for tag, _ in shown.tags].count("svg") == 4


def test_failing_guard_is_reported_as_failing() -> None:
    scenario = scenarios(parse_results(results(asr=[0.4] * 20)))[0]
    assert "up to 40.0 % did: the guard did not hold" in verdict_sentence(scenario)
    assert judge(scenario, scenario.guarded[0]).state is State.FAILED


def test_final_rewards_read_as_a_sentence() -> None:
    data = results()
    data["runs"].append({**data["runs"][2], "defence": "mine.yaml"})
    scenario = scenarios(parse_results(data))[0]
    said = cost_sentence(scenario)
    assert re.search(r"Honest reward ended at [\d.]+ with mine\.yaml, [\d.]+ ", said), said
    assert re.search(r"[\d.]+ (undefended|attack-free)", said), said


def test_runs_without_counts_are_shown_without_rates() -> None:
    data = results(submitted=None, abstained=None, example=None)
    scenario = scenarios(parse_results(data))[0]
    assert "rejected" not in cost_sentence(scenario)
    page(data)
    page({"runs": [], "summary": [], "config": {}, "versions": {}})
    page({"runs": [run("none", "none", [0.0], [0.5])]})
    page({"runs": [run("text", "x", [], [])]})


def test_summary_and_markdown_carry_counts() -> None:
    parsed = parse_results(results())
    rows = {(r["attack"], r["defence"], r["metric"]): r for r in summarise(parsed)}
    poisoned = rows["text", "logprob_bound", "rejected_poisoned"]
    assert poisoned["mean"] == 1.0
    assert poisoned["n"] == 600
    assert 0.99 < poisoned["low"] < 1
    alone = rows["text", "none", "asr_end"]
    assert (alone["n"], alone["over"], alone["low"], alone["high"]) == (1, "seeds", None, None)
    counted = rows["text", "none", "asr_end_of_completions"]
    assert (counted["n"], counted["over"]) == (1000, "completions")
    assert counted["low"] < counted["mean"] == alone["mean"] == 1.0
    assert ("none", "none", "honest_reward_end") in rows
    table = markdown_table(parsed)
    assert "| text | guarded | 1 | 0.10 % (1 seed) | 1 / 1,000 = 0.10 % (0.02–0.56 %) |" in table
    for part in table.split("\n\n"):
        assert len({line.count("|") for line in part.strip().splitlines()}) == 1


def test_markdown_cells_cannot_break_out() -> None:
    data = results()
    data["runs"][2]["defence"] = "a|b\n<script>"
    data["runs"].append({**data["runs"][2], "defence": "c"})
    table = markdown_table(parse_results(data))
    assert "a\\|b &lt;script>" in table


def test_cells_stay_in_their_row_and_column() -> None:
    cell = Shade("a\tb\nc|d<e\u202e", ("1 / 2",))
    table = Table(("x", "y"), [[cell, Rate(1, 2)], ["end", "–"]])
    lines = [*table.text()]
    assert len(lines) == 3
    assert lines[1].endswith("1 / 2 = 50.0 % (9.5–90.5 %)")
    assert len({len(line) for line in lines}) == 1, "numbers are right-aligned"
    assert [line.replace("\\|", "").count("|") for line in table.markdown().splitlines()] == [3] * 4
    shown = Page(table.html())
    assert [tag for tag, _ in shown.tags].count("td") == 4
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True).print(table.rich("t[red]"))
    for text in (*table.text(), table.markdown(), shown.text, out.getvalue()):
        assert "\u202e" not in text
    assert "1 / 2 = 50.0 % (9.5–90.5 %)" in table.markdown()


def test_labels_never_overlap_and_stay_inside() -> None:
    placed = spread([100, 101, 99, 215, 10], 31, 22, HEIGHT - 46)
    assert all(22 <= at <= HEIGHT - 46 for at in placed)
    ordered = sorted(placed)
    assert all(b - a >= 31 - 1e-6 for a, b in itertools.pairwise(ordered))
    assert spread([], 31, 0, 1) == []
    assert smooth([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]
    svg = line_chart([Line("<b>", [3.0], 0)], describe='"<i>', show=str)
    assert "<b>" not in svg
    assert "<i>" not in svg


def test_percent_never_rounds_to_0_or_100() -> None:
    shown = [percent(x) for x in (0, 1e-6, 0.0003, 0.031, 0.5, 0.9995, 0.999999, 1)]
    assert shown == [
        "0 %", "<0.01 %", "0.03 %", "3.1 %", "50.0 %", "99.95 %", ">99.99 %", "100 %",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "(file): expected to exist"),
        ("{", "(file): expected JSON"),
        ("[]", "(file): expected"),
        ("{}", "runs: expected to be present, got nothing"),
        ('{"runs": 3}', "runs: expected list, got 3"),
        ('{"runs": [{"attack": "text"}]}', "runs.0.defence: expected to be present"),
        ("[" * 100_000, "(file): expected JSON"),
    ],
)
def test_invalid_files_are_reported(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "results.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ResultsError) as caught:
        load_results(file)
    assert str(caught.value).startswith(f"{file}: {message}")


def test_invalid_numbers_are_refused() -> None:
    data = results(asr=[float("nan")])
    with pytest.raises(ResultsError, match=r"runs\.2\.asr\.0: expected"):
        parse_results(data)
    data = results(rejected={"honest": -1, "honest_correct": 0, "poisoned": 0})
    with pytest.raises(ResultsError, match=r"runs\.2\.rejected\.honest"):
        parse_results(data)


def test_command_writes_the_page_or_exits_2(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(report)
    write_json(tmp_path / "results.json", results())
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert done.exit_code == 0, done.output
    Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.json"]
    broken = json.loads((tmp_path / "results.json").read_text())
    broken["runs"][0]["seed"] = "seven"
    write_json(tmp_path / "results.json", broken)
    failed = CliRunner().invoke(app, [str(tmp_path)])
    assert failed.exit_code == 2
    assert "runs.0.seed: expected integer" in failed.stderr
    assert "'seven'" in failed.stderr


def test_terminal_table_has_six_columns_in_80_characters():
    header = ["attack", "defence", "completions", "undefended", "guarded", "rejected", "a", "b"]
    table = Table(
        header, [["attack-free", "heterogeneous", "19,200", "94 %", "0 %", "100 %", "1", "2"]]
    )
    into = io.StringIO()
    Console(file=into, width=80).print(table.narrow().rich())
    lines = into.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for word in (*header[:6], "attack-free", "heterogeneous", "19,200"):
        assert any(word in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_word_is_cut_while_other_columns_could_wrap(width: int) -> None:
    header = ["Swarm", "Attack success at the end, over seeds", "Of completions, Wilson", "Reward",
              "Against attack-free", "Verdict"]  # fmt: skip
    cell = Shade("93.6 %", ("1,348 / 1,440", "92.2–94.8 %"))
    table = Table(header, [["attack-free", cell, cell, "0.715", "–", "unsettled"]] * 2)
    into = io.StringIO()
    console = Console(file=into, width=width)
    shown = table.narrow(console.width)
    console.print(shown.rich(room=console.width))
    words = {word for line in into.getvalue().splitlines() for word in line.split()}
    assert {"attack-free", "completions,", "success", "1,348"} <= words
    assert max(map(len, into.getvalue().splitlines())) <= width


def test_swarm_outcome_fits_80_characters() -> None:
    data = parse_results(results())
    into = io.StringIO()
    print_outcomes(Console(file=into, width=80), data)
    lines = into.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "rejected" in into.getvalue()
    assert "undefended" in into.getvalue()
