"""Entry point of ``python -m grpo_guard``."""

from grpo_guard.cli.main import app

app(prog_name="grpo-guard")
