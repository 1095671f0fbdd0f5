"""TRL's table of completions, with the column ``guard``, for MLflow and TensorBoard. TRL itself
sends the table to W&B and Trackio, and writes it to ``output_dir/completions``; `CompletionsTable`
passes these files on to the two trackers that TRL does not cover."""

import os
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback

# Maximum numbers of rows and of characters per cell on a tracker's page; the whole table is in
# TRL's files.
_ROWS: Final = 64
_CELL: Final = 500


class CompletionsTable(TrainerCallback):  # type: ignore[misc]
    """Sends each table of completions to MLflow and TensorBoard, if ``report_to`` names them.

    MLflow gets a JSON artifact ``completions/completions_STEP.json`` per logging step, TensorBoard
    a text ``completions`` of at most 64 rows. A table is sent with the next step's log; the last
    table is sent at the end of training. Needs ``log_completions=True``.
    """

    def __init__(self) -> None:
        self._sent: set[str] = set()
        self._run: str | None = None
        self._writer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find MLflow's run and open TensorBoard's file."""
        if not state.is_world_process_zero:
            return
        # Tables of an earlier run in the same folder are not sent again.
        self._sent = {file.name for file in _tables(args)}
        if "mlflow" in args.report_to:
            import mlflow

            # The id is kept, because MLflow's own callback ends the run before the last table.
            active = mlflow.active_run()
            self._run = None if active is None else active.info.run_id
        if "tensorboard" in args.report_to:
            from torch.utils.tensorboard import SummaryWriter

            usual = str(Path(args.output_dir, "runs", "completions"))
            self._writer = SummaryWriter(os.environ.get("TENSORBOARD_LOGGING_DIR") or usual)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send the tables that TRL has written since the last call."""
        if self._run is None and self._writer is None:
            return
        import pandas

        for file in _tables(args):
            if file.name in self._sent:
                continue
            self._sent.add(file.name)
            table = pandas.read_parquet(file)
            if self._run is not None:
                from mlflow import MlflowClient

                text = table.to_json(orient="split", index=False)
                MlflowClient().log_text(self._run, text, f"completions/{file.stem}.json")
            if self._writer is not None:
                step = int(file.stem.rpartition("_")[2])
                self._writer.add_text("completions", markdown(table), step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send the last table."""
        self.on_log(args, state, control)
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def markdown(table: Any) -> str:
    """Format a pandas table as Markdown, cut to what a page can show. Completions are text written
    by strangers, so each cell is shown as code, and no link or picture in it is rendered."""
    rows = [list(table.columns), ["---"] * len(table.columns)]
    rows += [[_cell(value) for value in row] for row in table.head(_ROWS).values.tolist()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(value: Any) -> str:
    text = str(value)[:_CELL].replace("`", "'").replace("|", "¦")
    return f"`{' '.join(text.split())}`" if text.strip() else ""


def _tables(args: Any) -> list[Path]:
    return sorted(Path(args.output_dir, "completions").glob("completions_*.parquet"))
