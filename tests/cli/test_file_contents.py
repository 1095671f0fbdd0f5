"""``verify`` goes by a file's content, not its name, and says what to do with others."""

import gzip
import json
import os
import re

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.file_rows import ALWAYS_UNPACKED
from grpo_guard.cli.main import app

ROWS = [{"prompt": "p", "text": text} for text in ("fine", "a\u202eb")]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
DAMAGED = gzip.compress(LINES)[:10] + b"\xff" * 40


def verify(tmp_path, source, *options, stdin=None):
    (tmp_path / "guard.yaml").write_text("verifier: {type: screens}")
    out = tmp_path / "verdicts.jsonl"
    out.unlink(missing_ok=True)
    arguments = ["verify", "-c", tmp_path / "guard.yaml", source, "-o", out, *options]
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    lines = out.read_text().splitlines() if out.exists() else []
    return result, [json.loads(line)["outcome"] for line in lines]


def parquet():
    pyarrow = pytest.importorskip("pyarrow")
    written = pytest.importorskip("pyarrow.parquet")
    into = pyarrow.BufferOutputStream()
    written.write_table(pyarrow.Table.from_pylist(ROWS), into)
    return into.getvalue().to_pybytes()


READ = {
    "part-0": parquet,
    "data.PARQUET": parquet,
    "named.jsonl": parquet,
    "a.jsonl.gz": lambda: gzip.compress(LINES),
    "packed.jsonl": lambda: gzip.compress(LINES),
    "lines.json": lambda: LINES,
    "marked.jsonl": lambda: b"\xef\xbb\xbf" + LINES,
    "marked.jsonl.gz": lambda: gzip.compress(b"\xef\xbb\xbf" + LINES),
    "windows.jsonl": lambda: LINES.replace(b"\n", b"\r\n"),
}
REFUSED = {
    "empty.jsonl": (b"", r"\(file\): expected at least one completion, got none"),
    "blank.jsonl": (b"\n \n", r"\(file\): expected at least one completion, got none"),
    "cut.jsonl.gz": (gzip.compress(LINES)[:-9], "expected a readable file, got Compressed file"),
    "damaged.jsonl.gz": (DAMAGED, r"damaged.jsonl.gz: .*expected a readable file, got Error -3"),
    "bomb.jsonl.gz": (
        gzip.compress(LINES + b" " * (ALWAYS_UNPACKED + 1)),
        r"bomb.jsonl.gz: .*at most 100 times as much when unpacked, got more; unpack it: gunzip",
    ),
    "utf16.jsonl": (LINES.decode().encode("utf-16"), "got UTF-16 text; convert it: iconv -f"),
    "a.jsonl.bz2": (b"BZh91AY&SY", "got bzip2; unpack it: bunzip2 .*a.jsonl.bz2"),
    "a.jsonl.zst": (b"\x28\xb5\x2f\xfd00", "got Zstandard; unpack it: unzstd .*a.jsonl.zst"),
    "table.xlsx": (b"PK\x03\x04junk", "expected JSON lines or Parquet, got an archive"),
    "saved.pkl": (b"\x80\x04\x95junk", "got a pickle; save the prompt and text"),
    "list.json": (json.dumps(ROWS, indent=1).encode(), r"got list; .*jq -c '\.\[\]' .*list.json"),
    "list.jsonl": (json.dumps(ROWS).encode(), r":1: \(line\): .*got list; .*jq -c '\.\[\]' "),
    "out.jsonl": (b'{"index": 0, "outcome": "accept"}', "got verdicts; verify --table counts them"),
}


@pytest.mark.parametrize("name", READ)
def test_file_is_read_by_its_content(tmp_path, name):
    (tmp_path / name).write_bytes(READ[name]())
    result, outcomes = verify(tmp_path, tmp_path / name)
    assert outcomes == ["accept", "reject"], result.output


@pytest.mark.parametrize("name", REFUSED)
def test_file_that_cannot_be_read_says_what_to_do(tmp_path, name):
    content, said = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    result, outcomes = verify(tmp_path, tmp_path / name)
    assert (result.exit_code, outcomes) == (2, [])
    assert re.search(said, result.stderr), result.stderr
    assert result.stderr.count("\n") == 1


def test_folder_of_several_kinds_is_refused(tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(LINES)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(LINES))
    result, outcomes = verify(tmp_path, folder)
    assert (result.exit_code, outcomes) == (2, [])
    assert "expected files of one kind, got .jsonl (a.jsonl) and .jsonl.gz (b.jsonl.gz)" in (
        result.stderr
    )
    (folder / "a.jsonl").unlink()
    assert verify(tmp_path, folder)[1] == ["accept", "reject"]


def test_compressed_lines_keep_unknown_fields_an_error(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "p", "text": "t", "nod": 1}'))
    result, _ = verify(tmp_path, tmp_path / "a.jsonl.gz")
    assert (result.exit_code, "nod: expected" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", ["damaged.jsonl.gz", "bomb.jsonl.gz"])
def test_compressed_rollouts_are_read_up_to_the_same_limit(tmp_path, name):
    content, said = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    result, _ = verify(tmp_path, tmp_path / name, "--map", "text=text")
    assert result.exit_code == 2
    assert re.search(said, result.stderr), result.stderr


def test_pipe_is_read_once(tmp_path):
    end, start = os.pipe()  # as the shell's <(...)
    os.write(start, LINES)
    os.close(start)
    try:
        assert verify(tmp_path, f"/dev/fd/{end}")[1] == ["accept", "reject"]
        result, _ = verify(tmp_path, f"/dev/fd/{end}", "--map", "text=completion")
    finally:
        os.close(end)
    assert "--map: expected a file next to it, got a pipe" in result.stderr


def test_mark_at_the_start_of_standard_input_is_skipped(tmp_path):
    assert verify(tmp_path, "-", stdin=b"\xef\xbb\xbf" + LINES)[1] == ["accept", "reject"]
