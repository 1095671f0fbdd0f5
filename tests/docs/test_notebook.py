"""The notebook, run as a reader runs it, with few rounds."""

from collections import Counter

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.doc_pages import ROOT

NOTEBOOK = ROOT / "docs" / "examples" / "poisoned_to_guarded.ipynb"


def printed(cell):
    return "".join(out.text for out in cell.outputs if out.output_type == "stream")


def drawn(cell):
    return [out for out in cell.outputs if "image/png" in out.get("data", {})]


def test_notebook_is_committed_without_outputs():
    assert not any(c.get("outputs") for c in nbformat.read(NOTEBOOK, 4).cells)


@pytest.mark.slow
def test_notebook_runs_from_a_poisoned_batch_to_a_guarded_swarm(monkeypatch):
    monkeypatch.setenv("ROUNDS", "2")
    book = nbformat.read(NOTEBOOK, 4)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": ROOT}}).execute()
    cells = [c for c in book.cells if c.cell_type == "code"]
    text = "\n".join(map(printed, cells))
    seen = Counter(tuple(line.split()[:2]) for line in text.splitlines())
    assert seen["mallory", "REJECT"] == 1
    assert "mallory    the task pays 1.0, the guard lets it earn None" in text
    assert "logprob_bound  attack success in the last round 0%" in text
    assert "'poisoned': 48" in text, "all poison of two rounds is rejected"
    assert sum(map(len, map(drawn, cells))) == 2
