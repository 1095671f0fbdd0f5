"""What a guarded TRL run writes to the files of W&B, MLflow and TensorBoard, read back."""

import json
from pathlib import Path

import pytest

pytest.importorskip("trl")

from grpo_guard import Policy, guard
from grpo_guard.adapters.trl.tables import CompletionsTable, markdown
from tests.helpers.rule_verifiers import NoWord
from tests.trl import tiny_trl

SENT = ("12", "Hail", "3", "x")
COLUMN = ["accept", "reject: says Hail", "accept", "accept"]
FIGURES = {
    "guard/reject_rate": 0.25,
    "guard/reject_rate/no_word": 0.25,
    "guard/accept_rate": 0.75,
    "guard/node/peer0/accept": 1.0,
    "guard/node/peer0/reject": 0.0,
    "guard/node/peer1/reject": 1.0,
    "guard/node/peer1/accept": 0.0,
    "guard/node/peer3/abstain": 0.0,
}


def length(completions, **columns):
    return [float(len(text)) for text in completions]


def node_is_peer(prompts, trainer):
    sent = tiny_trl.peers(*SENT)(prompts, trainer)
    return {**sent, "node": sent["peer"]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Two guarded steps that report to a tracker, in a separate folder."""
    monkeypatch.chdir(tmp_path)

    def trained(tracker, guarded=True, **settings):
        reward = guard(NoWord(), policy=Policy("drop"))(length) if guarded else length
        made = tiny_trl.trainer(
            tmp_path / "out", [reward], rollout=node_is_peer, report_to=tracker,
            log_completions=True, extra={"callbacks": [CompletionsTable()]}, **settings,
        )  # fmt: skip
        made.train()
        return tmp_path

    return trained


def tables_of_trl(folder):
    import pandas

    files = sorted((folder / "out" / "completions").glob("*.parquet"))
    return [pandas.read_parquet(file) for file in files]


def wandb_records(data):
    """Read the records of a run's file: a log in LevelDB's format, in blocks of 32 KiB."""
    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def of_wandb(folder):
    """Return (rows of metrics, tables) from an offline run's record log and media."""
    from wandb.proto import wandb_internal_pb2

    (log,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    rows = []
    for data in wandb_records(log.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    files = sorted(log.parent.glob("files/media/table/*.json"))
    return rows, [json.loads(file.read_text()) for file in files]


def without_prefix(row):
    return {name.removeprefix("train/"): value for name, value in row.items()}


@pytest.fixture
def offline(run, tmp_path, monkeypatch):
    """Return `of_wandb` of a run; ends the wandb service, which remembers its first folder."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def found(**how):
        try:
            folder = run("wandb", **how)
        finally:
            wandb.finish()
            wandb.teardown()
        return of_wandb(folder)

    return found


@pytest.mark.slow
def test_wandb_files(offline):
    rows, tables = offline()
    logged = [without_prefix(row) for row in rows if "train/guard/reject_rate" in row]
    assert len(logged) == 2
    for row in logged:
        assert FIGURES.items() <= row.items()
    assert len(tables) >= 2
    for table in tables:
        at = table["columns"].index("guard")
        assert [row[at] for row in table["data"]][:4] == COLUMN
    # The run's records name the files.
    assert len([row for row in rows if "completions/path" in row]) == len(tables)


@pytest.mark.slow
def test_wandb_without_a_guard_has_neither_metrics_nor_column(offline):
    rows, tables = offline(guarded=False)
    assert rows
    assert not [name for row in rows for name in row if "guard" in name]
    assert tables
    assert not any("guard" in table["columns"] for table in tables)


STORES = ["database", "files"]


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_mlflow_files(run, tmp_path, monkeypatch, store):
    mlflow = pytest.importorskip("mlflow")
    if store == "database":
        pytest.importorskip("sqlalchemy", reason="mlflow-skinny brings no database")
        pytest.importorskip("alembic", reason="mlflow-skinny brings no database")
    uri = f"sqlite:///{tmp_path / 'm.db'}" if store == "database" else (tmp_path / "m").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(uri)
    try:
        run("mlflow")
        mlflow.flush_async_logging()
        client = mlflow.MlflowClient(uri)
        (found,) = client.search_runs(["0"])
        for name, value in FIGURES.items():
            # A path cannot be both a file and a folder.
            kept = name.replace("_rate/", "_rate.") if store == "files" else name
            history = client.get_metric_history(found.info.run_id, kept)
            assert [one.value for one in history] == [value] * 2, name
            assert [one.step for one in history] == [1, 2]
        names = [one.path for one in client.list_artifacts(found.info.run_id, "completions")]
        assert names == [f"completions/completions_0000{step}.json" for step in (1, 2)]
        for name in names:
            place = client.download_artifacts(found.info.run_id, name, str(tmp_path))
            table = json.loads(Path(place).read_text())
            at = table["columns"].index("guard")
            assert [row[at] for row in table["data"]][:4] == COLUMN
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.slow
def test_tensorboard_files(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run("tensorboard")
    scalars, texts = {}, []
    for place in {file.parent for file in folder.rglob("events.out.tfevents.*")}:
        events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        for name in events.Tags()["scalars"]:
            scalars[name] = [(one.step, one.value) for one in events.Scalars(name)]
        if "completions/text_summary" in events.Tags()["tensors"]:
            texts = [
                (one.step, one.tensor_proto.string_val[0].decode())
                for one in events.Tensors("completions/text_summary")
            ]
    for name, value in FIGURES.items():
        assert scalars[f"train/{name}"] == [(1, value), (2, value)]
    assert [step for step, _ in texts] == [1, 2]
    for _, text in texts:
        head, _, *rows = [[cell.strip() for cell in row.split("|")] for row in text.splitlines()]
        at = head.index("guard")
        assert [row[at].strip("`") for row in rows][:4] == COLUMN


@pytest.mark.slow
def test_trl_files_have_the_column_with_any_tracker(run):
    tables = tables_of_trl(run("none"))
    assert len(tables) == 2
    assert all(list(table["guard"])[:4] == COLUMN for table in tables)


def test_threat_completion_cannot_embed_an_image():
    pandas = pytest.importorskip("pandas")
    spy = "` ![x](https://thief.example/a.png) | x"
    _, _, row = markdown(pandas.DataFrame({"completion": [spy], "guard": ["accept"]})).splitlines()
    assert row == "| `' ![x](https://thief.example/a.png) ¦ x` | `accept` |"
