"""Impersonation and false answers, as a swarm exchanges them, without training."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

from grpo_guard.core.verdict import Cause
from grpo_guard.evals.attacks.adversary import Forged
from grpo_guard.evals.defences.base import Ground
from grpo_guard.evals.defences.registry import defence
from grpo_guard.evals.studies.baselines.registry import OfTask, SignedTerms, node_key
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.generate import Sampled
from grpo_guard.evals.tasks.word_problems import WordProblems, generate

CONFIG = SwarmConfig(setting="vertical", prompts=4, group_size=2)


def test_defender_solves_every_word_problem() -> None:
    known = OfTask(WordProblems())
    problems = generate("references", 2_000)
    assert [known.of(p.prompt) for p in problems] == [p.answer for p in problems]
    assert known.of("What is your favourite animal?") is None


def test_signed_nodes_keep_their_names_from_impostors(tmp_path: Path) -> None:
    """Vertical, four nodes with one prompt each; node-3 sends as itself and as node-0, and sends a
    false answer.
    """
    terms = SignedTerms(CONFIG, WordProblems())
    problems = generate("exchange", 4)

    def sent(group: int, slot: int, **how: Any) -> Any:
        problem = how.pop("problem", problems[group])
        one = Sampled(group, (1,), (2,), problem.solution)
        return terms.submitted(0, problem, one, (group, slot), **how).completion

    false = replace(problems[3], answer=str(int(problems[3].answer) + 1))
    batch = [sent(group, slot) for group in range(3) for slot in range(2)]
    batch += [sent(3, 0, forged=Forged("", node="node-0")), sent(3, 1, problem=false)]
    build = defence("heterogeneous_signed").build
    assert build is not None
    peer: Any = SimpleNamespace(tokenizer=None)
    guard: Any = build(peer, Ground(CONFIG, WordProblems(), tmp_path))
    judged, verdicts = guard.guard.judge(batch)
    keys = [node_key(CONFIG, f"node-{i}").public for i in range(4)]
    assert [c.node for c in judged] == [key for key in keys[:3] for _ in range(2)] + [None, keys[3]]
    assert {v.cause for v in verdicts[:6]} & {Cause.UNAUTHENTICATED, Cause.FALSE_REFERENCE} == set()
    assert [v.cause for v in verdicts[6:]] == [Cause.UNAUTHENTICATED, Cause.FALSE_REFERENCE]
