"""Loads the written programs, and asks the public verifier about a text."""

import json
from pathlib import Path
from typing import Any

from grpo_guard import Completion
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.core.verdict import Verdict

FOLDER = Path(__file__).parent / "programs"


def load(name: str) -> list[dict[str, Any]]:
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def judge(text: str, **options: Any) -> Verdict:
    return CodeVerifier(**options).verify([Completion("q", text)])[0]


def tagged(source: str) -> str:
    return f"<code>\n{source}\n</code>"


def kinds(verdict: Verdict) -> set[str]:
    return {finding.kind for finding in verdict.findings}
