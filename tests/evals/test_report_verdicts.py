"""A report's verdict on a guard: by stated limits, over seeds; baselines decide nothing."""

import io
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from grpo_guard.evals import roles
from grpo_guard.evals.attacks.registry import attack_names
from grpo_guard.evals.report.console import markdown_table, print_outcomes
from grpo_guard.evals.report.detection import roc
from grpo_guard.evals.report.html import render
from grpo_guard.evals.report.scenarios import scenarios
from grpo_guard.evals.report.sentences import headline
from grpo_guard.evals.report.verdicts import GuardVerdict, State, cost_text, guard_verdicts
from grpo_guard.evals.results import parse_results
from grpo_guard.evals.roles import ATTACKS, STACKS, Role, lengthens, ordered_attacks, role
from grpo_guard.evals.stats import OverSeeds
from tests.evals.report_samples import HOSTILE, page, run

N = 20
RISING = [min(1.0, i / 10) for i in range(N)]
CLEAN = [0.0] * N
REWARD = [0.7] * N


def runs(attack: str, defence: str, asr: list[float], seeds: int = 3, **more: Any) -> list[Any]:
    reward = more.pop("reward", REWARD)
    return [run(attack, defence, asr, reward, seed=seed, **more) for seed in range(seeds)]


def verdict_on(*parts: list[Any]) -> GuardVerdict:
    parsed = parse_results({"runs": [one for part in parts for one in part]})
    (found,) = guard_verdicts(scenarios(parsed))
    return found


def basis(attack: str = "text", **more: Any) -> list[Any]:
    return runs("none", "none", CLEAN, **more) + runs(attack, "none", RISING, **more)


def test_guard_holds_within_all_limits() -> None:
    found = verdict_on(basis(), runs("text", "homogeneous", [0.0] * 19 + [0.02]))
    assert found.state is State.HELD
    assert headline([found]) == "homogeneous kept out the one attack."


def test_one_round_above_the_limit_is_a_located_failure() -> None:
    found = verdict_on(basis(), runs("text", "homogeneous", [0.0] * 7 + [0.3] + [0.0] * 12))
    assert found.state is State.FAILED
    assert found.cases[0].reasons == ("attack success 30.0 % in iteration 8",)
    assert not found.cases[0].kept_out
    assert headline([found]) == "homogeneous let in the one attack."


def test_runs_are_compared_with_matching_attack_free_runs() -> None:
    """Silent malicious nodes are named before "none", and a shared seed means different draws."""
    lower, found = [0.5] * N, {}
    for beside in ("mine", "homogeneous"):
        data = [
            *basis(), *runs("silent", "none", CLEAN, reward=lower),
            *runs("silent", "coin", CLEAN, reward=[0.4] * N),
            *runs("silent (1/12)", "none", CLEAN, reward=[0.3] * N),
            *runs("text", beside, CLEAN, reward=lower),
            *runs("text (1/12)", beside, CLEAN, reward=lower),
        ]  # fmt: skip
        for scenario in scenarios(parse_results({"runs": data})):
            free = scenario.beside(scenario.guarded[0])
            assert free is not None
            assert free.reward_end is not None
            found[scenario.attack, beside] = free.reward_end.value
    assert found == {
        ("text", "mine"): pytest.approx(0.5), ("text", "homogeneous"): pytest.approx(0.4),
        ("text (1/12)", "mine"): pytest.approx(0.3),
        ("text (1/12)", "homogeneous"): pytest.approx(0.3),
    }  # fmt: skip


def test_right_answers_rejected_are_a_cost() -> None:
    rejected = {"honest": 60, "honest_correct": 40, "poisoned": 600}
    found = verdict_on(basis(), runs("text", "mine", CLEAN, rejected=rejected))
    assert found.state is State.COSTLY
    assert "4.0 % of right answers rejected" in found.cases[0].reasons


def test_a_share_near_its_limit_is_told_apart_from_it() -> None:
    rejected = {"honest": 201, "honest_correct": 201, "poisoned": 600}
    submitted = {"honest": 10_000, "honest_correct": 10_000, "poisoned": 600}
    guarded = runs("text", "mine", CLEAN, rejected=rejected, submitted=submitted)
    console = Console(file=io.StringIO(), width=200, record=True)
    print_outcomes(console, parse_results({"runs": [*basis(), *guarded]}))
    kept = "mine: too costly against text: the attack is kept out, but 2.01\xa0% of right answers"
    assert kept in console.export_text()


def test_lost_reward_counts_if_seeds_agree_and_is_undecided_on_few() -> None:
    lower = [0.6] * N
    guarded = runs("text", "homogeneous", CLEAN, reward=lower)
    assert verdict_on(basis(), guarded).state is State.COSTLY
    few = verdict_on(basis(seeds=2), runs("text", "homogeneous", CLEAN, 2, reward=lower))
    assert few.state is State.UNDECIDED
    assert few.cases[0].kept_out
    assert few.cases[0].reasons == (
        "honest reward −14.3 % (2 equal seeds) compared with the attack-free runs, "
        "which may be chance",
    )
    ruined = runs("text", "homogeneous", CLEAN, 1, reward=[0.1] * N)
    assert verdict_on(basis(seeds=1), ruined).state is State.COSTLY
    apart = [
        run("text", "homogeneous", CLEAN, [reward] * N, seed=seed)
        for seed, reward in enumerate((0.5, 0.8, 0.65))
    ]
    assert verdict_on(basis(), apart).state is State.UNDECIDED


def test_a_harmless_attack_tests_nothing() -> None:
    harmless = runs("none", "none", CLEAN) + runs("text", "none", [0.01] * N)
    found = verdict_on(harmless, runs("text", "homogeneous", CLEAN))
    assert found.state is State.UNTESTED
    assert headline([found]) == "homogeneous met no attack that is shown to do harm here."
    text = page({"runs": harmless + runs("text", "homogeneous", CLEAN)}).text
    assert "did no harm here, so it tests nothing" in text
    assert "That shows nothing about a guard" in text


def test_no_verdict_without_an_undefended_run() -> None:
    rejected = {"honest": 60, "honest_correct": 40, "poisoned": 600}
    missing = "no undefended run is available"
    for more, state in (({}, State.UNTESTED), ({"rejected": rejected}, State.COSTLY)):
        data = runs("none", "none", CLEAN) + runs("text", "homogeneous", CLEAN, **more)
        found = verdict_on(data)
        assert found.state is state
        assert found.cases[0].reasons[-1] == missing
        assert headline([found]) == "homogeneous met no attack that is shown to do harm here."
        assert "kept out" not in page({"runs": data}).text
        assert missing in page({"runs": data}).text
        assert missing in markdown_table(parse_results({"runs": data})).splitlines()[-1]


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ((0.70,), "+0.0 % (1 seed): unsettled"),
        ((0.69, 0.71, 0.70), "+0.0 % (−3.5 to +3.5 %, 3 seeds): within ±5 %"),
        ((0.66, 0.74, 0.70), "+0.0 % (−14.2 to +14.2 %, 3 seeds): unsettled"),
        ((0.49, 0.51, 0.50), "−28.6 % (−32.1 to −25.0 %, 3 seeds): beyond ±5 %"),
    ],
)
def test_cost_is_decided_by_its_interval_over_seeds(rewards: tuple[float, ...], said: str) -> None:
    seeds = len(rewards)
    guarded = [
        run("text", "homogeneous", CLEAN, [reward] * N, seed=seed)
        for seed, reward in enumerate(rewards)
    ]
    found = verdict_on(basis(seeds=seeds), guarded)
    cost = found.cases[0].cost
    assert cost is not None
    assert cost_text(cost) == said
    unsettled = said.endswith("unsettled")
    text = page({"runs": basis(seeds=seeds) + guarded}).text.replace("\xa0", " ")
    assert (f"cost in honest reward against text {said}." in text) is unsettled
    assert ("These figures come from 1 seed and do not show" in text) is (seeds == 1)
    assert "Some of these figures" not in text


def test_duplicated_seed_is_one_observation() -> None:
    twice = [*basis(seeds=1), *basis(seeds=1), *runs("text", "mine", CLEAN, 1)]
    (scenario,) = scenarios(parse_results({"runs": twice}))
    assert scenario.undefended is not None
    assert scenario.undefended.reward_end == OverSeeds(pytest.approx(0.7), None, None, 1)


def test_attack_whose_nodes_left_is_reported_during_and_after() -> None:
    data = [
        run("text (leaves after 5)", "none", [0.0] * 5 + [0.2 + seed / 10] * 20 + [0.8] * 5,
            [0.5] * 30, seed=seed, leaves=5)
        for seed in range(3)
    ]  # fmt: skip
    last = markdown_table(parse_results({"runs": data})).splitlines()[-1]
    assert last == (
        "| text (leaves after 5) | undefended | after round 5 "
        "| 30.0 % (5.2–54.8 %; 3 seeds; round 6) | 90 / 300 = 30.0 % (25.1–35.4 %) "
        "| 80.0 % (3 equal seeds; round 26) | 240 / 300 = 80.0 % (75.1–84.1 %) |"
    )
    assert "After the attacker left" in page({"runs": data}).text
    short = [one | {"asr": one["asr"][:10], "honest_reward": [0.5] * 10} for one in data]
    assert markdown_table(parse_results({"runs": short})).endswith("| – | – |\n")


def test_length_is_judged_by_the_attack_free_run() -> None:
    usual, long = [30.0] * N, [30.0] * 10 + [70.0] * 10
    parts = [
        runs("none", "none", CLEAN, mean_tokens=usual),
        runs("dos", "none", CLEAN, mean_tokens=long),
    ]
    good = verdict_on(*parts, runs("dos", "mine", CLEAN, mean_tokens=[33.0] * N))
    assert good.state is State.HELD
    bad = verdict_on(*parts, runs("dos", "mine", CLEAN, mean_tokens=long))
    assert bad.state is State.FAILED
    assert "mean length 2.33 times the attack-free run’s" in bad.cases[0].reasons
    short = verdict_on(*parts, runs("dos", "mine", CLEAN, mean_tokens=[15.0] * N))
    assert short.state is State.FAILED
    broken = runs("dos", "mine", CLEAN, mean_tokens=[-1.0, 0.0] * 10)
    assert verdict_on(*parts, broken).state is State.UNDECIDED


def test_behaviour_before_the_attack_is_not_counted() -> None:
    usual = [0.3] * N
    parts = [runs("none", "none", CLEAN), runs("reward_selection", "none", [0.3] + [0.9] * 19)]
    assert verdict_on(*parts, runs("reward_selection", "mine", usual)).state is State.HELD
    assert (
        verdict_on(*parts, runs("reward_selection", "mine", [0.3, 0.5] * 10)).state is State.FAILED
    )


def test_every_bundled_attack_and_defence_is_classified() -> None:
    """An unknown defence counts as the reader's own guard and would decide the verdict."""
    pytest.importorskip("transformers")
    from grpo_guard.evals.defences.early import defences

    mine = [name for name in defences() if role(name) is Role.GUARD]
    assert set(mine) == set(STACKS)
    assert set(attack_names()) - {"none", "silent"} == set(ATTACKS)
    on_length = ("dos", "cap_forcing", "seed_grinding_dos (1/8)")
    assert all(lengthens(name) for name in on_length)
    assert not lengthens("text")


def test_abstaining_guard_does_not_hold() -> None:
    silent = runs("text", "mine", CLEAN, abstained=400, abstained_poisoned=400)
    found = verdict_on(basis(), silent)
    assert found.state is State.UNDECIDED
    assert "abstained on 15.4 % of all completions" in found.cases[0].reasons
    seldom = runs("text", "mine", CLEAN, abstained=10, abstained_poisoned=10)
    assert verdict_on(basis(), seldom).state is State.HELD


def test_abstentions_reduce_coverage() -> None:
    sent = {"honest": 100, "honest_correct": 50, "poisoned": 30, "cover": 70}
    found = parse_results({"runs": runs("text", "mine", CLEAN, 1, submitted=sent, abstained=150)})
    (series,) = scenarios(found)[0].guarded
    assert series.abstained is not None
    assert (series.abstained.count, series.abstained.total) == (150, 200)


def test_baselines_decide_nothing() -> None:
    assert roles.under_test(["paper_logit", "kl_0.1", "authors_logit_60"]) == []
    assert roles.under_test(["kl_0.1", "arithmetic"]) == ["arithmetic"]
    stacks = ["mine", "heterogeneous (zero)", "homogeneous", "paper_logit", "length"]
    assert roles.under_test(stacks) == ["homogeneous", "heterogeneous (zero)", "mine"]
    assert role("paper_logit (zero)") is Role.BASELINE
    data = basis() + runs("text", "paper_logit", RISING) + runs("text", "homogeneous", CLEAN)
    found = guard_verdicts(scenarios(parse_results({"runs": data})))
    assert [one.defence for one in found] == ["homogeneous"]
    text = page({"runs": data}).text
    assert "without effect on this verdict: paper_logit" in text
    assert "homogeneous held" in text
    only = [*basis(), *runs("text", "paper_logit", CLEAN)]
    assert "No guard was tested" in page({"runs": only}).text


def test_untested_attacks_are_listed() -> None:
    data = [*basis(), *runs("math", "none", RISING), *runs("text", "homogeneous", CLEAN)]
    (found,) = guard_verdicts(scenarios(parse_results({"runs": data})))
    assert found.not_run == ("math",)
    assert "not run against math." in page({"runs": data}).text


def test_guarded_runs_without_attack_count_for_their_cost() -> None:
    rejected = {"honest": 60, "honest_correct": 40, "poisoned": 0}
    none = runs("none", "homogeneous", CLEAN, rejected=rejected)
    found = verdict_on(basis(), runs("text", "homogeneous", CLEAN), none)
    assert found.state is State.COSTLY
    assert headline([found]) == "homogeneous kept out the one attack."
    text = page({"runs": basis() + runs("text", "homogeneous", CLEAN) + none}).text
    assert "too costly without attack: 4.0 % of right answers rejected" in text.replace("\xa0", " ")


def test_order_of_runs_does_not_change_the_page() -> None:
    data = [
        *basis("math"), *basis(), *runs("text", "zeta", CLEAN), *runs("math", "homogeneous", CLEAN),
        *runs("text", "kl_0.1", RISING), *runs("math", "paper_logit", RISING),
        *runs("aaa", "none", RISING),
    ]  # fmt: skip
    data = list({(r["attack"], r["defence"], r["seed"]): r for r in data}.values())
    pages = [
        render(parse_results({"runs": list(order)}))
        for order in (data, data[::-1], data[5:] + data[:5])
    ]
    assert pages[0] == pages[1] == pages[2]
    assert ordered_attacks(["zzz", "dos", "text (1/16)", "math"]) == [
        "text (1/16)", "math", "dos", "zzz",
    ]  # fmt: skip


def test_conditions_keep_runs_apart_and_name_themselves() -> None:
    short = [run("text", "none", [0.1] * 5, [0.5] * 5)]
    other = [run("text", "none", RISING, REWARD, task="python_maths")]
    found = scenarios(parse_results({"runs": basis(seeds=1) + short + other}))
    assert len(found) == 3
    assert [one.name for one in found] == [
        "text, ?, 5 iterations", "text, ?, 20 iterations", "text, python_maths, 20 iterations",
    ]  # fmt: skip
    assert [len(one.undefended.runs) for one in found if one.undefended] == [1, 1, 1]


def test_bands_show_the_spread_over_seeds() -> None:
    data = [
        run("text", "none", [value] * 50, [0.5] * 50, seed=seed)
        for seed, value in enumerate((0.5, 0.6, 0.7))
    ]
    shown = page({"runs": data})
    classes = [attributes.get("class") for tag, attributes in shown.tags if tag == "path"]
    assert "band s1" in classes
    single = page({"runs": data[:1]})
    assert not any("band" in (a.get("class") or "") for _, a in single.tags)


def named(text: str) -> dict[str, Any]:
    """Runs whose names are all ``text``."""
    spoken = {"outcome": "accept", "cause": text, "verifier": text, "rejected_by": [text]}
    example = {
        "kind": "accepted_poison", "prompt": text, "text": text, "span": [0, 2], "node": text,
        "iteration": 3, "left_out": [5, 10**12], "verdict": spoken,
    }  # fmt: skip
    fields = {"examples": [example], "excluded": {text: 3}, "task": text, "policy": text}
    parts = [basis(seeds=1), runs(text, "none", RISING, 1), runs(text, text, CLEAN, 1)]
    parts.append(runs("text", text, CLEAN, 1, **fields))
    return {"runs": [one for part in parts for one in part]}


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    shown = page(named(text))
    assert {tag for tag, _ in shown.tags} <= {tag for tag, _ in page(named("plain name")).tags}
    assert not any(name.startswith("on") for _, attributes in shown.tags for name in attributes)
    for char in "\u202e\u2066\u200b\x1b\x07":
        assert char not in shown.text
    curves = {
        "runs": [], "honest_p_values": {text: [0.5, 1.0]}, "p_values": {text: {text: [0.0, 0.7]}},
    }  # fmt: skip
    shown = page(curves)
    assert [tag for tag, _ in shown.tags].count("svg") == 1
    assert not any(name.startswith("on") for _, attributes in shown.tags for name in attributes)
    page({"runs": [], "p_values": {text: {text: []}}})


def test_contradicting_counts_are_shown_as_unknown() -> None:
    wrong = {"honest": 9**9, "honest_correct": 9**9, "poisoned": 9**9}
    shown = page({"runs": basis() + runs("text", "mine", CLEAN, rejected=wrong, abstained=9**9)})
    assert f"{9**9:,}" not in shown.text
    held_out = {"correct": 9, "total": 3}
    shown = page({"runs": basis() + runs("text", "mine", CLEAN, held_out=held_out, seconds=-1.0)})
    assert "9 / 3" not in shown.text
    assert "300" not in shown.text


def test_student_t_over_seeds() -> None:
    five = OverSeeds.of([0.1, 0.2, 0.3, 0.4, 0.5])
    assert five.low == pytest.approx(0.3 - 2.776 * 0.158114 / 5**0.5, abs=1e-4)
    two = OverSeeds.of([0.2, 0.4])
    assert two.low == pytest.approx(0.3 - 12.706 * 0.141421 / 2**0.5, abs=1e-3)
    assert OverSeeds.of([0.2]).low is None
    thirty = OverSeeds.of([0.0, 1.0] * 15)
    assert thirty.high == pytest.approx(0.5 + 2.0452 * 0.508548 / 30**0.5, abs=1e-4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_interval_contains_its_mean(values: list[float]) -> None:
    found = OverSeeds.of(values, (0.0, 1.0))
    assert found.seeds == len(values)
    if found.low is not None and found.high is not None:
        assert -1e-9 <= found.low <= found.value <= found.high <= 1 + 1e-9


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=20),
    st.lists(st.integers(0, 6), min_size=1, max_size=20),
)
def test_roc_matches_counts_at_thresholds(honest: list[int], poison: list[int]) -> None:
    scale = [value / 6 for value in honest], [value / 6 for value in poison]
    found = roc("text", *scale)
    for threshold in (value / 6 for value in range(7)):
        false = sum(value <= threshold for value in scale[0]) / len(honest)
        caught = sum(value <= threshold for value in scale[1]) / len(poison)
        assert any(rate <= false and hit >= caught for rate, hit in found.points)
    pairs = list(itertools.product(poison, honest))
    area = sum((p < h) + 0.5 * (p == h) for p, h in pairs) / len(pairs)
    assert found.auc == pytest.approx(area)
    assert found.caught.count == sum(value < min(honest) for value in poison)
