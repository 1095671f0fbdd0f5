"""A rule is one place: a screen that its module declares is found, configured and listed."""

import subprocess
import sys
from textwrap import dedent

import pytest

# In a process of its own: rules collect their kinds when they are imported.
DECLARED = """
    from grpo_guard.content.screens import characters
    from grpo_guard.content.screens.view import Screen
    from grpo_guard.content.severity import REPORT
    from grpo_guard.core.verdict import Finding

    def blank_lines(view):
        at = view.text.find("\\n" * 201)
        if at >= 0:
            yield Finding("blank_lines", "200 blank lines", char_span=(at, at + 201))

    characters.SCREENS = (*characters.SCREENS, Screen("blank_lines", REPORT, blank_lines))

    from grpo_guard import Completion
    from grpo_guard.config.tree import build_verifier

    def judged(**options):
        text = "So it is 7." + "\\n" * 201 + "Yes."
        verifier = build_verifier({"type": "screens", **options}, 1e-3)
        return verifier.verify([Completion("3 + 4?", text)])[0]

    """


def run(code: str) -> str:
    program = dedent(DECLARED) + dedent(code)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_declared_screen_reports_and_takes_severities() -> None:
    run("""
        kinds = [finding.kind for finding in judged().findings]
        assert "blank_lines" in kinds, kinds
        others = {"without": ["blank_run"]}
        assert judged(**others).accepted
        assert judged(**others, severity={"blank_lines": "reject"}).rejected
        assert not judged(without=["blank_run", "blank_lines"]).findings
    """)


def test_a_declared_screen_is_in_the_tables() -> None:
    pytest.importorskip("scipy")
    shown = run("""
        from grpo_guard.content.kinds import KINDS
        from grpo_guard.evals.studies.pages.studies import rules_without_rows

        assert KINDS["blank_lines"] is REPORT
        print(rules_without_rows())
    """)
    (row,) = [line for line in shown.splitlines() if line.startswith("| report |")]
    assert "`blank_lines`" in row
