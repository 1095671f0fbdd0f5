"""``verify`` reads files in the formats that trainers and other tools write."""

import json
import zipfile

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.cli.rows import Rows, completions_of, opened
from grpo_guard.core.jsonl import InputError

pyarrow = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets")
BAD = "a\u202eb"


def verify(tmp_path, source, *options):
    (tmp_path / "guard.yaml").write_text("verifier: {type: screens}")
    out = tmp_path / "out.jsonl"
    out.unlink(missing_ok=True)
    arguments = ["verify", "-c", tmp_path / "guard.yaml", source, "-o", out, *options]
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return result, rows


def outcomes(tmp_path, source, *options):
    result, rows = verify(tmp_path, source, *options)
    assert result.exit_code == 0, result.output
    return [row["outcome"] for row in rows]


CHAT = [{"role": "user", "content": "Q?"}]
ROLLOUT = [
    {"prompt": CHAT, "completion": [{"role": "assistant", "content": text}], "answer": "3",
     "reward": 1.0, "example_id": i}
    for i, text in enumerate(["fine", BAD])
]  # fmt: skip


def write_parquet(path, columns):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_trl_logged_completions(tmp_path):
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (10, 9):
        write_parquet(
            folder / f"completions_{step}.parquet",
            {"step": [step] * 2, "prompt": [CHAT, CHAT], "advantage": [0.5, -0.5],
             "completion": [[{"role": "assistant", "content": t}] for t in ("fine", BAD)],
             "reward": [1.0, 0.0], "node": ["a", "b"]},
        )  # fmt: skip
    assert outcomes(tmp_path, folder) == ["accept", "reject"] * 2
    assert outcomes(tmp_path, folder / "completions_9.parquet") == ["accept", "reject"]
    assert [row["node"] for row in verify(tmp_path, folder)[1]] == ["a", "b"] * 2


def test_folder_of_datasets(tmp_path):
    made = datasets.Dataset.from_dict({"question": ["Q?", "Q?"], "response": ["fine", BAD]})
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made}).save_to_disk(tmp_path / "split")
    for name in ("one", "split"):
        assert outcomes(tmp_path, tmp_path / name) == ["accept", "reject"]


def test_verl_rollouts(tmp_path):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for step in (2, 10):
        lines = [
            {"input": "Q?", "output": text, "gts": "3", "score": 1.0, "step": step}
            for text in ("fine", BAD)
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert outcomes(tmp_path, folder) == ["accept", "reject"] * 2
    assert outcomes(tmp_path, folder / "2.jsonl") == ["accept", "reject"]


def test_prime_rl_rollouts(tmp_path):
    path = tmp_path / "train_rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROLLOUT))
    _, rows = verify(tmp_path, path)
    assert [(row["outcome"], row["id"]) for row in rows] == [("accept", 0), ("reject", 1)]


@pytest.mark.parametrize("suffix", [".json", ".eval"])
def test_inspect_logs(tmp_path, suffix):
    samples = [
        {"id": i, "epoch": 1, "input": given, "target": "3",
         "output": {"choices": [{"message": {"role": "assistant", "content": text}}]}}
        for i, (given, text) in enumerate([("Q?", "fine"), (CHAT, BAD)])
    ]  # fmt: skip
    path = tmp_path / f"log{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps({"version": 2, "eval": {}, "samples": samples}))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.json", "{}")
            for sample in samples:
                archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))
    assert outcomes(tmp_path, path) == ["accept", "reject"]


def test_custom_field_names_can_be_mapped(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"ask": "Q?", "said": BAD, "extra": 1}) + "\n")
    assert outcomes(tmp_path, path, "--map", "prompt=ask", "--map", "text=said") == ["reject"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--map", "text"], "--map: expected FIELD=NAME such as text=completion, got 'text'"),
        (["--map", "txt=said"], "--map: expected a field of .*did you mean 'text'?"),
        (["--map", "said=text"], "did you mean text=said?"),
        (["--map", "completion=said"], "got 'completion'; did you mean 'text'?"),
        (
            ["--map", "text=sad"],
            "in.jsonl:1: sad: expected a column of this name, got prompt, said; name it: "
            "--map text=said",
        ),
        (
            ["--map", "node=said"],
            "in.jsonl:1: text: expected a column of this name, got prompt, said; name it: "
            "--map text=COLUMN --map node=said",
        ),
    ],
)
def test_mistakes_in_a_mapping_are_reported(tmp_path, options, said):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"prompt": "Q?", "said": "fine"}) + "\n")
    result, rows = verify(tmp_path, path, *options)
    assert result.exit_code == 2
    assert rows == []
    import re

    assert re.search(said.replace("?", r"\?").replace(r"\??", r"\?"), result.stderr), result.stderr


@pytest.mark.parametrize("column", ["reference", "node"])
@pytest.mark.parametrize(
    ("given", "read"), [([7, 8], ["7", "8"]), ([7.0, 8.5], ["7", "8.5"]), (["7", "x"], ["7", "x"])]
)
def test_numbers_are_the_same_text_in_every_format(tmp_path, column, given, read):
    columns = {"prompt": ["p", "q"], "text": ["a", "b"], column: given}
    write_parquet(tmp_path / "in.parquet", columns)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("in.parquet", "in.jsonl"):
        found = completions_of(tmp_path / name)
        assert [getattr(completion, column) for completion in found] == read, name


@pytest.mark.parametrize("column", ["reference", "node", "task", "round", "slot", "group", "id"])
def test_nan_is_no_value_in_every_format(tmp_path, column):
    row = {"prompt": "p", "text": "a", column: float("nan")}
    write_parquet(tmp_path / "in.parquet", {name: [one] for name, one in row.items()})
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("in.parquet", "in.jsonl"):
        with opened(tmp_path / name, []) as lines:
            (found,) = Rows(lines.file, name)
        assert not found.problem
        assert getattr(found if column == "id" else found.completion, column) is None


@pytest.mark.parametrize("column", ["round", "node", "id"])
def test_whole_floats_of_a_column_with_gaps_are_integers_in_every_format(tmp_path, column):
    row = {"prompt": "p", "text": "a", column: 3.0}
    write_parquet(tmp_path / "in.parquet", {name: [one] for name, one in row.items()})
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("in.parquet", "in.jsonl") if column != "node" else ("in.parquet",):
        with opened(tmp_path / name, []) as lines:
            (found,) = Rows(lines.file, name)
        value = getattr(found if column == "id" else found.completion, column)
        assert str(value) == "3"


@pytest.mark.parametrize("column", ["reference", "node", "task"])
@pytest.mark.parametrize("value", [True])
def test_what_is_no_name_or_number_is_refused_in_every_format(tmp_path, column, value):
    row = {"prompt": "p", "text": "a", column: value}
    write_parquet(tmp_path / "in.parquet", {name: [one] for name, one in row.items()})
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("in.parquet", "in.jsonl"):
        with pytest.raises(InputError, match=f"{column}: expected a string.* or null, got {value}"):
            completions_of(tmp_path / name)


@pytest.mark.parametrize("name", ["broken.parquet", "broken.eval", "broken.json"])
def test_broken_file_gives_one_message(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00nonsense")
    result, _ = verify(tmp_path, tmp_path / name)
    assert result.exit_code == 2
    assert name in result.stderr
    assert result.stderr.count("\n") == 1


def test_empty_folder_error_says_what_was_expected(tmp_path):
    (tmp_path / "empty").mkdir()
    result, _ = verify(tmp_path, tmp_path / "empty")
    assert result.exit_code == 2
    assert "folder, or one with .parquet, .jsonl, .jsonl.gz or .eval files, got" in result.stderr


def test_calibrate_reads_the_same_formats(tmp_path):
    write_parquet(tmp_path / "honest.parquet", {"prompt": ["p"] * 3, "completion": list("abc")})
    (tmp_path / "guard.yaml").write_text("verifier: {type: screens}")
    arguments = ["calibrate", "--rules", "-c", tmp_path / "guard.yaml", tmp_path / "honest.parquet"]
    arguments += ["-o", tmp_path / "out.json"]
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    assert "3 honest completions" in result.output


def test_calibrate_and_detect_read_columns_of_other_names(tmp_path):
    write_parquet(
        tmp_path / "honest.parquet", {"ask": ["p"] * 3, "said": list("abc"), "n": [1] * 3}
    )
    (tmp_path / "guard.yaml").write_text("verifier: {type: screens}")
    source, out = tmp_path / "honest.parquet", tmp_path / "out"
    names = ["--map", "prompt=ask", "--map", "text=said"]
    calibrate = ["calibrate", "--rules", "-c", tmp_path / "guard.yaml", source, "-o", out]
    detect = ["eval", "detect", "--honest", source, "--attacks", "text", "--verifiers", "screens"]
    for command in (calibrate, [*detect, "-o", tmp_path / "detected"]):
        refused = CliRunner().invoke(app, [str(word) for word in command])
        assert refused.exit_code == 2
        assert "name them: --map prompt=COLUMN --map text=COLUMN" in refused.output
        result = CliRunner().invoke(app, [str(word) for word in [*command, *names]])
        assert result.exit_code == 0, result.output
        assert result.output.count("column not read: n; --map FIELD=n reads it") == 1


def test_eval_detect_reads_honest_completions_from_parquet(tmp_path):
    write_parquet(tmp_path / "honest.parquet", {"prompt": ["p"] * 3, "completion": ["fine."] * 3})
    arguments = ["eval", "detect", "--honest", tmp_path / "honest.parquet", "--attacks", "text"]
    arguments += ["--verifiers", "screens", "-o", tmp_path / "out"]
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "results.json").read_text())["summary"][0]["n"] == 3


def test_missing_columns_are_reported_at_once_with_a_line_to_copy(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(path, {"problems": ["Q?"], "said": ["fine"], "peer": ["ann"], "score": [1]})
    result, _ = verify(tmp_path, path, "--map", "node=pere")
    assert result.exit_code == 2
    assert (
        "in.parquet:1: pere, prompt, text: expected columns of these names, got problems, said, "
        "peer, score; name them: --map node=peer --map prompt=problems --map text=COLUMN"
    ) in result.stderr


def test_columns_that_are_not_read_are_listed_once(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(
        path, {"prompt": ["Q?"] * 3, "text": ["fine"] * 3, "pay": [1] * 3, "who": ["a"] * 3}
    )
    result, _ = verify(tmp_path, path)
    assert result.exit_code == 0
    said = "in.parquet: columns not read: pay, who; --map FIELD=COLUMN reads one"
    assert result.stderr.count(said) == 1


def test_missing_value_is_told_from_a_missing_column(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(path, {"prompt": ["Q?", "Q?"], "completion": ["fine", None]})
    result, _ = verify(tmp_path, path)
    assert "in.parquet:2: completion: expected a value in each row, got null" in result.stderr
