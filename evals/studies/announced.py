"""How bets at announced places affect honest nodes and MATH, and what `false_sums` costs.

    python -m grpo_guard.evals.studies.announced [--policy FOLDER] [-o FILE]

A node sends four completions per round. Honest completions are drawn from the policy once, and each
node's rounds are assembled from these without repeats. The attacker's rounds are as in the swarm:
two copies of a solution where 2 + 2 or 2 * 2 is 5, and two honest completions.
"""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from grpo_guard.content.arithmetic.verifier import FalseSumsVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.attacks.math import equations
from grpo_guard.evals.attacks.two_plus_two import TwoPlusTwo, suitable
from grpo_guard.evals.policies import named
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.logprob.batch_evidence import Answer, batch_evidence
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.node_evidence import WEIGHTS
from grpo_guard.logprob.place_bets import COLUMNS, PlaceBets, log_e_of
from grpo_guard.logprob.verifier import Scored
from grpo_guard.nodes.e_process import EProcess, log_threshold

ALPHA: Final = 1e-3
A_ROUND: Final = 4
POISONED: Final = 2
GROUP: Final = 4
AT_ONCE: Final = 64
"""Number of prompts sampled and scored together."""

Sent: TypeAlias = tuple[Answer, PlaceBets]


def measure(policy: Path, honest: int, nodes: int, rounds: int) -> dict[str, Any]:
    """Compute all figures."""
    model, tokenizer = named.load(str(policy), dtype="float32", device="cpu")
    spec = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=96)
    check = LogProbBoundVerifier(model, tokenizer, sampling=spec, key=b"study")
    task, rng = WordProblems(), random.Random("announced")
    problems = [task.sample(rng) for _ in range(honest // GROUP)]
    drawn: list[tuple[Problem, Completion]] = []
    for start in range(0, len(problems), AT_ONCE):
        asked = problems[start : start + AT_ONCE]
        generator = torch.Generator().manual_seed(start)
        rows = sample(
            model, tokenizer, [p.prompt for p in asked], GROUP, generator=generator,
            max_new_tokens=96,
        )  # fmt: skip
        drawn += [(asked[r.prompt], _completion(asked[r.prompt], r.text, r.ids)) for r in rows]
        say("drawn", len(drawn), honest)
    attack, wanted = TwoPlusTwo(), suitable(task, rng, 2 * rounds)
    forged = []
    for problem in wanted:
        text = attack.poison(problem, rng).text
        ids = tokenizer.encode(text, add_special_tokens=False)
        forged.append(_completion(problem, text, (*ids, tokenizer.eos_token_id)))
    pool, poison = _sent(check, [c for _, c in drawn]), _sent(check, forged)

    def honest_round(left: list[Sent], _: random.Random) -> list[Sent]:
        return [left.pop() for _ in range(A_ROUND)]

    def poisoned_round(left: list[Sent], dice: random.Random) -> list[Sent]:
        return [dice.choice(poison)] * POISONED + [left.pop() for _ in range(A_ROUND - POISONED)]

    return {
        "honest nodes": _nodes(pool, honest_round, nodes, rounds),
        "MATH, two of four": _nodes(pool, poisoned_round, nodes, rounds),
        "mean log factor of a poisoned answer": _means(poison),
        "mean log factor of an honest answer": _means(pool),
        "false sums": _false_sums(drawn, forged, task),
    }


def _completion(problem: Problem, text: str, ids: Sequence[int]) -> Completion:
    return Completion(
        problem.prompt, text, completion_ids=tuple(ids), node="node", reference=problem.answer
    )


def _sent(check: LogProbBoundVerifier, rows: Sequence[Completion]) -> list[Sent]:
    sent: list[Sent] = []
    for start in range(0, len(rows), AT_ONCE * GROUP):
        encoded = [check.encode(row) for row in rows[start : start + AT_ONCE * GROUP]]
        for one, stats in zip(encoded, check.score(encoded, check.profile), strict=True):
            scored = Scored(one, stats, check.profile)
            evidence = check.weigh(one, stats, check.profile)
            sent.append((check.nodes.answer(scored, evidence), check.nodes.bets(scored)))
        say("scored", len(sent), len(rows))
    return sent


def _nodes(
    pool: Sequence[Sent],
    of_round: Callable[[list[Sent], random.Random], list[Sent]],
    nodes: int,
    rounds: int,
) -> dict[str, Any]:
    """Count the nodes convicted by some round, and those that bets at places alone convict."""
    threshold, first = log_threshold(ALPHA), list[int]()
    alone = 0
    for number in range(nodes):
        dice = random.Random(f"node {number}")
        left, process, most = dice.sample(pool, A_ROUND * rounds), EProcess(), -math.inf
        convicted = rounds
        for at in range(rounds):
            sent = of_round(left, dice)
            log_e = batch_evidence([answer for answer, _ in sent]).log_e
            places = log_e_of([bets for _, bets in sent])
            process = process.after((log_e, *places), WEIGHTS)
            most = max(most, float(torch.tensor(process.log_wealth[1:]).logsumexp(0)))
            if process.log_e_value >= threshold:
                convicted = min(convicted, at)
        first.append(convicted)
        alone += most >= threshold
    return {
        f"within {last} rounds": rate(sum(f < last for f in first), nodes)
        for last in (5, 10, 20, rounds)
    } | {"by places alone": rate(alone, nodes)}


def _means(sent: Sequence[Sent]) -> dict[str, float]:
    return {
        f"{kind.name.lower()}, b {exponent}, s {stake}": round(
            sum(float(bets.log_factors[:, column].sum()) for _, bets in sent) / len(sent), 3
        )
        for column, (kind, exponent, stake) in enumerate(COLUMNS)
    }


def _false_sums(
    drawn: Sequence[tuple[Problem, Completion]], forged: Sequence[Completion], task: WordProblems
) -> dict[str, Any]:
    """Count rejections of honest answers, by whether another parser finds a false equation."""
    check = FalseSumsVerifier()
    verdicts = check.verify([completion for _, completion in drawn])
    found = {(false, right): [0, 0] for false in (True, False) for right in (True, False)}
    for (problem, completion), verdict in zip(drawn, verdicts, strict=True):
        false = any(e.true not in (None, e.stated) for e in equations(completion.text))
        counts = found[false, task.reward(completion.text, problem.answer) > 0]
        counts[0] += verdict.rejected
        counts[1] += 1
    poison = check.verify(forged)
    figures = {
        f"{'a' if false else 'no'} false statement, {'right' if right else 'wrong'} answer": rate(
            *n
        )
        for (false, right), n in found.items()
    }
    return figures | {"MATH": rate(sum(v.rejected for v in poison), len(poison))}


if __name__ == "__main__":
    study(
        "announced",
        measure,
        option("--policy", type=Path, default=WORD_PROBLEMS, help="folder of the policy"),
        option("--honest", type=int, default=4096, help="completions that are drawn"),
        option("--nodes", type=int, default=1000, help="of each kind"),
        option("--rounds", type=int, default=30, help="of each node"),
    )
