"""``grpo-guard view`` writes one page on which a hostile completion is text and nothing else."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from grpo_guard import Completion, presets
from grpo_guard.cli.main import app
from grpo_guard.core.verdict import accept, reject

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "&lt;b&gt; \u2028 \x00 \ud800 a\u202eb",
    "]]></pre><svg/onload=alert(1)>",
]


class Tags(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.tags, self.texts, self.within = [], [], None

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.within = tag

    def handle_data(self, data):
        if self.within == "script":
            self.texts.append(data)


@pytest.fixture
def page(tmp_path):
    (tmp_path / "guard.yaml").write_text("verifier: {all: [{type: screens}, {type: length}]}")
    rows = [
        {"prompt": "Q?" + text, "text": text, "node": text, "round": i, "id": text[:20]}
        for i, text in enumerate(HOSTILE)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    run = CliRunner().invoke
    verified = run(app, ["verify", "-c", str(tmp_path / "guard.yaml"), str(source), "-o", str(out)])
    assert verified.exit_code in (0, 3), verified.output
    result = run(app, ["view", str(out), "--in", str(source)])
    assert result.exit_code == 0, result.output
    return (tmp_path / "out.html").read_text()


def test_file_without_a_verdict_is_refused(tmp_path):
    (tmp_path / "out.jsonl").write_text("")
    result = CliRunner().invoke(app, ["view", str(tmp_path / "out.jsonl")])
    assert result.exit_code == 2
    said = "".join(result.output.split())
    assert "out.jsonl:(file):expectedatleastoneverdict,gotnone" in said
    assert not (tmp_path / "out.html").exists()


def rows_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["rows"]


def test_text_never_becomes_markup(page):
    tags = Tags()
    tags.feed(page)
    assert [tag for tag, _ in tags.tags] == [
        "html", "head", "meta", "meta", "meta", "title", "style", "body", "main",
        "script", "script",
    ]  # fmt: skip
    data, script = tags.texts
    assert not set("<>&") & set(data)
    rows = sorted(json.loads(data)["rows"], key=lambda row: row["index"])
    assert [row["text"] for row in rows] == HOSTILE
    assert [row["round"] for row in rows] == list(range(len(HOSTILE)))
    for dangerous in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert dangerous not in script


def test_only_the_page_script_may_run(page):
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert "http" not in re.sub(r"https?-equiv", "", page.replace("http-equiv", ""))


def test_evidence_and_deciding_members_are_shown(page):
    rows = rows_of(page)
    assert [row["outcome"] for row in rows] == sorted(
        (row["outcome"] for row in rows), reverse=True
    )
    bidi = next(row for row in rows if row["index"] == 3)
    assert bidi["outcome"] == "reject"
    assert bidi["by"] == ["screens"]
    start, end = bidi["findings"][0]["span"]
    assert 0 <= start < end <= len(HOSTILE[3])


def test_p_value_shown_is_that_of_the_deciding_member(tmp_path):
    verdict = reject(
        "stack", p_value=2e-3, members=(reject("odd", p_value=2e-4), accept("b", p_value=0.5))
    )
    rows = [verdict.to_dict(), reject("alone", p_value=0.25).to_dict(), reject("rule").to_dict()]
    lines = [json.dumps({"index": i} | row) + "\n" for i, row in enumerate(rows)]
    (tmp_path / "out.jsonl").write_text("".join(lines))
    CliRunner().invoke(app, ["view", str(tmp_path / "out.jsonl")])
    shown = [row["p"] for row in rows_of((tmp_path / "out.html").read_text())]
    assert shown == [[["odd", 2e-4]], [["alone", 0.25]], []]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_script_is_valid(page, tmp_path):
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    (tmp_path / "page.js").write_text(script)
    read = subprocess.run(["node", "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert (read.returncode, read.stderr) == (0, "")
    assert script.strip()


def test_rejected_rows_come_first_if_not_all_fit(tmp_path):
    out = tmp_path / "out.jsonl"
    rows = [{"index": i, "outcome": "reject" if i == 9 else "accept"} for i in range(10)]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(app, ["view", str(out), "--most", "3"])
    assert "3 rows; 7 more rows did not fit (--most); without --in FILE it has no texts" in (
        result.output
    )
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "out.html").read_text())[1]
    assert [row["index"] for row in json.loads(data)["rows"]] == [9, 0, 1]


@pytest.mark.parametrize("line", ['{"prompt": "p", "text": "t"}', "nonsense"])
def test_file_without_verdicts_is_refused(tmp_path, line):
    (tmp_path / "in.jsonl").write_text(line + "\n")
    result = CliRunner().invoke(app, ["view", str(tmp_path / "in.jsonl")])
    assert result.exit_code == 2
    assert "in.jsonl:1:" in result.stderr
    assert "completions follow --in" in result.stderr
    (tmp_path / "guard.yaml").write_text("verifier: {type: arithmetic}")
    words = ["verify", "-c", tmp_path / "guard.yaml", tmp_path / "in.jsonl", "-o"]
    result = CliRunner().invoke(app, [*map(str, words), str(tmp_path / "out.html")])
    assert result.exit_code == 2
    assert not (tmp_path / "out.html").exists()
    assert "grpo-guard view" in result.stderr


@pytest.fixture
def logged(tmp_path):
    """A guard's log of two batches: three completions accepted, two rejected."""
    guard = presets.different_weights()
    guard.log = tmp_path / "log.jsonl"
    for number, text in enumerate(["7 - 5 = 3.", HOSTILE[0] + " 7 - 5 = 9."]):
        sent = {"ann": "7 - 5 = 2.", "bob": text, "cid": "2."}
        guard.verify(
            [Completion("Q: 7 - 5?", t, node=n, round=number) for n, t in sent.items()][number:]
        )
    return tmp_path / "log.jsonl"


def test_log_of_a_guard_is_shown(logged):
    result = CliRunner().invoke(app, ["view", str(logged)])
    assert result.exit_code == 0, result.output
    assert "2 rows; 3 accepted ones are only counted, and texts are excerpts" in result.output
    page = logged.with_suffix(".html").read_text()
    rows = rows_of(page)
    assert [(row["outcome"], row["node"], row["round"]) for row in rows] == [
        ("reject", "bob", 0), ("reject", "bob", 1),
    ]  # fmt: skip
    assert [row["text"] for row in rows] == ["7 - 5 = 3.", HOSTILE[0] + " 7 - 5 = 9."]
    assert {row["prompt"] for row in rows} == {"Q: 7 - 5?"}
    assert rows[0]["by"] == ["arithmetic"]
    assert rows[0]["findings"][0]["kind"] == "wrong_equation"
    assert "only counts the completions that were accepted (3)" in page
    tags = Tags()
    tags.feed(page)
    assert [tag for tag, _ in tags.tags].count("script") == 2


def test_rows_of_a_log_that_do_not_fit_are_counted(logged):
    result = CliRunner().invoke(app, ["view", str(logged), "--most", "1"])
    assert "1 rows; 1 more rows did not fit (--most)" in result.output


def test_log_of_a_guard_needs_no_completions(logged):
    result = CliRunner().invoke(app, ["view", str(logged), "--in", str(logged)])
    assert result.exit_code == 2
    assert "a guard's log has excerpts of its own" in " ".join(result.stderr.split())
    logged.write_text(logged.read_text() + '{"prompt": "p"}\n')
    result = CliRunner().invoke(app, ["view", str(logged)])
    assert result.exit_code == 2
    assert "expected a line of a guard's log" in " ".join(result.stderr.split())


SAID = {"ann": "7 - 5 = 2.", "bob": "7 - 5 = 3."}


@pytest.fixture
def verified(tmp_path):
    """Two rows under other names of columns, and their verdicts."""
    (tmp_path / "guard.yaml").write_text("verifier: {type: arithmetic}")
    lines = [json.dumps({"ask": "7 - 5?", "reply": t, "peer": n}) for n, t in SAID.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    words = ["verify", "-c", tmp_path / "guard.yaml", tmp_path / "in.jsonl", "-o"]
    words += [tmp_path / "out.jsonl", "--map", "prompt=ask", "--map", "text=reply"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code in (0, 3), result.output
    return tmp_path


def view(folder, *options):
    return CliRunner().invoke(app, ["view", str(folder / "out.jsonl"), *map(str, options)])


def test_file_and_mapping_are_remembered(verified, monkeypatch):
    monkeypatch.chdir("/")
    result = view(verified)
    assert result.exit_code == 0, result.output
    rows = rows_of((verified / "out.html").read_text())
    assert [(row["node"], row["text"]) for row in rows] == [(n, SAID[n]) for n in ("bob", "ann")]
    assert "digest" not in rows[0]
    assert view(verified, "--in", verified / "in.jsonl").exit_code == 0
    (verified / "in.jsonl").unlink()
    assert "in.jsonl, which was verified, is not there" in view(verified).output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[::-1], "about, got node 'ann' in place of 'bob'; is it the file that"),
        (lambda lines: lines[:1], "out.jsonl has 2 verdicts, .*other.jsonl 1 row: is it the file"),
        (
            lambda lines: [lines[0], lines[1].replace("= 3", "= 2")],
            "row 1: expected the row that .* got another text, prompt, node or round; is it",
        ),
        (lambda lines: [lines[0], "{"], "other.jsonl:2: .line.: expected a JSON object"),
    ],
)
def test_another_file_than_the_verified_one_is_refused(verified, change, said):
    lines = (verified / "in.jsonl").read_text().splitlines()
    (verified / "other.jsonl").write_text("\n".join(change(lines)) + "\n")
    (verified / "out.html").unlink(missing_ok=True)
    result = view(verified, "--in", verified / "other.jsonl")
    assert result.exit_code == 2
    assert re.search(said, result.stderr), result.stderr
    assert not (verified / "out.html").exists()


def test_rows_that_were_added_since_are_announced(verified):
    with (verified / "in.jsonl").open("a") as file:
        file.write(json.dumps({"ask": "2?", "reply": "3", "peer": "eve"}) + "\n")
    result = view(verified)
    assert result.exit_code == 0, result.output
    assert "in.jsonl 3 rows: the others are not verified yet" in result.output


def test_older_verdicts_are_compared_by_id_and_node(verified):
    out = verified / "out.jsonl"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line in lines:
        del line["digest"]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert view(verified).exit_code == 0
    lines[1]["node"] = "eve"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = view(verified)
    assert result.exit_code == 2
    assert "got node 'bob' in place of 'eve'" in result.stderr


# As much of a browser as the page needs to be drawn; `t` is the text of an element.
DOM = """
class Node {
  constructor() { this.parts = []; }
  setAttribute() {}
  addEventListener() {}
  append(...parts) { this.parts.push(...parts); }
  replaceChildren(...parts) { this.parts = parts; }
  get t() { return this.parts.map((part) => part.t ?? part).join(" "); }
}
const main = new Node();
const document = {
  createElement: () => new Node(),
  createTextNode: (text) => { const made = new Node(); made.append(text); return made; },
  getElementById: (id) => id === "data" ? { textContent: given } : main,
};
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_nodes_are_sorted_by_name_and_number(tmp_path):
    rows = [
        {"index": i, "outcome": "reject", "node": name, "round": 0, "by": ["x"], "findings": []}
        for i, name in enumerate(["n10", "n9", "ann"])
    ]
    from grpo_guard.cli.view import Shown, page

    script = re.findall(r"<script>(.*?)</script>", page(Shown(rows, 0), "t"), re.DOTALL)[0]
    given = json.dumps({"title": "t", "rows": rows, "left_out": 0})
    stub = f"const given = {json.dumps(given)};" + DOM
    (tmp_path / "page.js").write_text(stub + script + "\nconsole.log(main.t);")
    done = subprocess.run(
        ["node", tmp_path / "page.js"], capture_output=True, text=True, check=True
    )
    table = done.stdout.partition("Rejected by node and round")[2]
    assert table.index("ann") < table.index("n9") < table.index("n10")


@pytest.mark.parametrize("command", [["view"], ["verify", "--table"]])
def test_missing_file_names_where_it_was_looked_for_and_what_is_similar(tmp_path, command):
    (tmp_path / "verdicts.jsonl").write_text("")
    result = CliRunner().invoke(app, [*command, str(tmp_path / "verdict.jsonl")])
    assert result.exit_code == 2
    assert "expected a file of verdicts, got none there; looked in" in result.stderr
    assert f"did you mean '{tmp_path / 'verdicts.jsonl'}'?" in result.stderr
