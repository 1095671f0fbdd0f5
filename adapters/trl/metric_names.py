"""Names of metrics that MLflow can keep as files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def storable(metrics: Mapping[str, float], trainer: Any) -> dict[str, float]:
    """The metrics under names that the trainer's tracker can keep.

    MLflow's store of plain files makes a file ``guard/reject_rate`` and then cannot make a folder
    of that name for ``guard/reject_rate/screens``, which it drops without a word. There the last
    slash becomes a dot, ``guard/reject_rate.screens``. A database keeps the names, as all other
    trackers do.
    """
    if not _keeps_files(trainer):
        return dict(metrics)
    return {_beside(name, metrics): value for name, value in metrics.items()}


def _beside(name: str, metrics: Mapping[str, float]) -> str:
    rate, slash, last = name.rpartition("/")
    return f"{rate}.{last}" if slash and rate in metrics else name


def _keeps_files(trainer: Any) -> bool:
    # Imported by then, if the trainer reports to it.
    mlflow = sys.modules.get("mlflow")
    reports = getattr(getattr(trainer, "args", None), "report_to", None) or ()
    if mlflow is None or "mlflow" not in reports:
        return False
    uri = str(mlflow.get_tracking_uri())
    return uri.startswith("file:") or ("://" not in uri and not uri.startswith("databricks"))
