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

from grpo_guard.cli.main import app

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


def test_text_never_becomes_markup(page):
    tags = Tags()
    tags.feed(page)
    assert [tag for tag, _ in tags.tags] == [
        "html", "head", "meta", "meta", "meta", "title", "style", "body", "main",
        "script", "script",
    ]  # fmt: skip
    data, script = tags.texts
    assert not set("<>&") & set(data)
    rows = json.loads(data)["rows"]
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
    rows = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["rows"]
    bidi = rows[3]
    assert bidi["outcome"] == "reject"
    assert bidi["by"] == ["screens"]
    start, end = bidi["findings"][0]["span"]
    assert 0 <= start < end <= len(HOSTILE[3])


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_script_is_valid(page, tmp_path):
    (tmp_path / "page.js").write_text(re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0])
    subprocess.run(["node", "--check", tmp_path / "page.js"], check=True)


def test_rejected_rows_come_first_if_not_all_fit(tmp_path):
    out = tmp_path / "out.jsonl"
    rows = [{"index": i, "outcome": "reject" if i == 9 else "accept"} for i in range(10)]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(app, ["view", str(out), "--most", "3"])
    assert "3 rows; 7 more rows did not fit (--most); without --in FILE it has no texts" in (
        result.output
    )
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "out.html").read_text())[1]
    assert [row["index"] for row in json.loads(data)["rows"]] == [0, 1, 9]


@pytest.mark.parametrize("line", ['{"prompt": "p", "text": "t"}', "nonsense"])
def test_file_without_verdicts_is_refused(tmp_path, line):
    (tmp_path / "in.jsonl").write_text(line + "\n")
    result = CliRunner().invoke(app, ["view", str(tmp_path / "in.jsonl")])
    assert result.exit_code == 2
    assert "in.jsonl:1:" in result.stderr
