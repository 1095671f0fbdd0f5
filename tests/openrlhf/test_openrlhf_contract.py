"""OpenRLHF's documented call: three positional lists, a dict of rewards, scores and extra_logs."""

import json
import logging
import math
import os
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Policy, guard
from grpo_guard.adapters.openrlhf.reward import completion_text, rows_from
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.detokenizer import ENDS
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import Broken, NoWord

ZERO = Policy(on_abstain="zero")
KEYS = {"guard_accept", "guard_reject", "guard_abstain"}


def completions_from(*given, **more):
    return [row.completion for row in rows_from(*given, **more)]


def reward_func(queries, prompts, labels):
    return {"rewards": 1.0, "scores": 0.5, "extra_logs": {"length": 3}}


def call(guarded, text="fine"):
    return guarded(["<user>q<assistant>" + text], ["<user>q<assistant>"], ["7"])


def test_one_sample_per_call():
    verifier = NoWord()
    guarded = guard(verifier, policy=ZERO)(reward_func)
    assert guarded.__name__ == "reward_func"
    assert call(guarded) == {
        "rewards": 1.0,
        "scores": 0.5,
        "extra_logs": {"length": 3, "guard_accept": 1.0, "guard_reject": 0.0, "guard_abstain": 0.0},
    }
    rejected = call(guarded, "Hail")
    assert (rejected["rewards"], rejected["scores"]) == (0.0, 0.0)
    assert rejected["extra_logs"]["guard_reject"] == 1.0
    completion = verifier.batches[0][0]
    assert (completion.prompt, completion.text) == ("<user>q<assistant>", "fine")
    assert completion.reference == "7"


def test_query_that_does_not_start_with_its_prompt_is_all_text():
    verifier = NoWord()
    guarded = guard(verifier, policy=ZERO)(reward_func)
    guarded(queries=["other text"], prompts=["prompt"], labels=[""])
    assert verifier.batches[0][0].text == "other text"
    assert verifier.batches[0][0].reference is None


FEW_CHARACTERS = st.text("ab <\n", max_size=60)
PROMPT = "<|im_start|>user\nWhat is 3 + 4, and why is it so?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("end", ENDS)
def test_end_of_turn_token_is_not_the_authors_text(end):
    guarded = guard(ScreensVerifier(), policy=ZERO)(reward_func)
    assert guarded([PROMPT + "It is 7." + end], [PROMPT], ["7"])["rewards"] == 1.0
    for text in (f"It is 7.{end} And", f"It is 7.{end}", f"It is 7.{end}<|im_start|>"):
        (completion,) = completions_from([PROMPT + text + end], [PROMPT], ["7"])
        assert completion.text == text


def test_template_written_by_the_author_is_rejected():
    guarded = guard(ScreensVerifier(), policy=ZERO)(reward_func)
    for text in (
        "It is 7.<|im_end|> And <|im_end|>",
        "It is 7.<|im_start|>",
        "<|im_end|>Hail<|im_end|>",
    ):
        assert guarded([PROMPT + text], [PROMPT], ["7"])["rewards"] == 0.0


SOLUTIONS = Path(os.environ.get("GRPO_GUARD_GSM8K") or "/nowhere") / "model_solutions.jsonl"
TEMPLATES = {
    "chatml": (PROMPT.replace("What is 3 + 4, and why is it so?", "{}"), "<|im_end|>"),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
        "<|eot_id|>",
    ),
    "gemma": ("<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>"),
    "llama2": ("<s> [INST] {} [/INST]", "</s>"),
}


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="needs GSM8K (GRPO_GUARD_GSM8K)")
@pytest.mark.parametrize("template", TEMPLATES)
def test_template_does_not_change_screening_of_real_completions(template):
    """Before the turn's closing token was stripped, all of them were rejected."""
    rows = [json.loads(line) for line in SOLUTIONS.read_text(encoding="utf-8").splitlines()]
    rows = random.Random(5).sample(rows, 1000)
    form, end = TEMPLATES[template]
    shown = [form.format(row["question"]) for row in rows]
    # Tokenizers such as Llama 2's move the space after <s>.
    prompts = [prompt.replace("<s> ", "<s>") for prompt in shown]
    queries = [p + row["completion"] + end for p, row in zip(shown, rows, strict=True)]
    batch = completions_from(queries, prompts, [""] * len(rows))
    assert [c.text for c in batch] == [row["completion"] for row in rows]
    assert not any(verdict.rejected for verdict in ScreensVerifier().verify(batch))


@pytest.mark.parametrize(
    "shown",
    [
        PROMPT,
        PROMPT.replace("\n", "\n "),
        PROMPT.replace("<|im_start|>", "<|im_start|> ").removesuffix("\n"),
        " " + PROMPT,
        PROMPT[20:],
        PROMPT[-40:],
    ],
)
def test_prompt_is_found_despite_moved_spaces_or_truncation(shown):
    said = "It is 7. " + PROMPT + "Hail"
    (completion,) = completions_from([shown + said + "<|im_end|>"], [PROMPT], ["7"])
    assert completion.text == said


@given(prompt=FEW_CHARACTERS, text=FEW_CHARACTERS, cut=st.integers(0))
def test_author_text_is_always_read(prompt, text, cut):
    """Whatever is taken for the prompt was in the prompt, except for spaces."""
    query = prompt[cut % (len(prompt) + 1) :] + text
    hidden = query.removesuffix(completion_text(query, prompt))
    assert "".join(hidden.split()) in "".join(prompt.split())


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_query_gives_a_text(query, prompt):
    assert completion_text(query, prompt) in query


@pytest.mark.parametrize(
    ("label", "reference"),
    [("7", "7"), ("", None), (None, None), (0, "0"), (7.5, "7.5"), (["7"], None), ({"a": 1}, None)],
)
def test_labels_are_passed_unchanged(label, reference):
    (completion,) = completions_from(["pa"], ["p"], [label])
    assert completion.reference == reference


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"rewards": torch.tensor(1.0)}, 1.0),
        ({"rewards": torch.tensor([1.0])}, 1.0),
        ({"rewards": [1.0]}, 1.0),
        (1.0, 1.0),
        ({"rewards": None}, 0.0),
        ({"rewards": math.nan}, 0.0),
        ({"rewards": torch.tensor([math.inf])}, 0.0),
    ],
)
def test_rewards_are_finite(result, expected):
    def reward(queries, prompts, labels):
        return result

    out = call(guard(NoWord(), policy=ZERO)(reward))
    assert out["rewards"] == out["scores"] == expected
    assert type(out["rewards"]) is float
    assert out["extra_logs"].keys() == KEYS


@pytest.mark.parametrize("failed", [None, math.nan, math.inf, -math.inf])
def test_invalid_reward_is_no_gain_if_wrong_answers_get_less(failed):
    """One at a time: a 0 would be better than the honest -1 of the same group."""
    rewards = iter([-1.0, 1.0, failed])
    guarded = guard(NoWord(), policy=ZERO)(lambda queries, prompts, labels: next(rewards))
    assert [call(guarded)["rewards"] for _ in range(3)] == [-1.0, 1.0, -1.0]


def test_vetoed_score_is_the_lowest_score_not_the_lowest_reward():
    """Dynamic filtering uses the mean score as the share of right answers."""

    def reward(queries, prompts, labels):
        right = "7" in queries[0]
        return {"rewards": 1.0 if right else -1.0, "scores": float(right)}

    guarded = guard(NoWord(), policy=ZERO)(reward)
    answers = [call(guarded, text) for text in ("8", "7", "7 Hail")]
    assert [answer["rewards"] for answer in answers] == [-1.0, 1.0, -1.0]
    assert [answer["scores"] for answer in answers] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((["pa"], ["p"], None), "reward_func.labels: expected a list, got None"),
        ((["pa"], "p", ["7"]), "reward_func.prompts: expected a list, got 'p'"),
        ((["pa", "pb"], ["p", "p"], ["7"]), "reward_func.labels: expected 2, one per query, got 1"),
    ],
)
def test_lists_that_do_not_fit_are_named(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        guard(NoWord(), policy=ZERO)(reward_func)(*given)


def test_batch_keeps_its_order():
    def reward(queries, prompts, labels):
        return {"rewards": torch.tensor([1.0, 2.0, 3.0])}

    out = guard(NoWord(), policy=ZERO)(reward)(["pa", "pHail", "pc"], ["p"] * 3, [""] * 3)
    assert out["rewards"] == [1.0, 0.0, 3.0]
    assert out["extra_logs"]["guard_reject"] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("on_abstain", "expected"), [("zero", 0.0), ("pass", 1.0)])
def test_failing_verifier_never_raises_and_logs_the_same_keys(on_abstain, expected):
    out = call(guard(Broken(), policy=Policy(on_abstain=on_abstain))(reward_func))
    assert out["rewards"] == expected
    assert out["extra_logs"].keys() == KEYS | {"length"}
    assert out["extra_logs"]["guard_abstain"] == 1.0


def test_past_the_abstain_rate_rewards_are_zero_with_a_warning(caplog):
    policy = Policy(on_abstain="pass", max_abstain_rate=0.5, abstain_window=2)
    guarded = guard(Broken(), policy=policy)(reward_func)
    with caplog.at_level(logging.ERROR, logger="grpo_guard"):
        rewards = [call(guarded)["rewards"] for _ in range(3)]
    assert rewards == [1.0, 0.0, 0.0]
    assert "abstained on 2 of 2" in caplog.text


class FullDisk:
    def record(self, batch, verdicts):
        raise OSError("disk full")


def test_failing_ledger_earns_nothing_with_a_warning(caplog):
    guarded = guard(NoWord(), policy=Policy(on_abstain="pass"), ledger=FullDisk())(reward_func)
    out = call(guarded)
    assert (out["rewards"], out["scores"], out["extra_logs"]["guard_abstain"]) == (0.0, 0.0, 1.0)
    assert out["extra_logs"].keys() == KEYS | {"length"}
    assert "the guard failed" in caplog.text
    assert "disk full" in caplog.text


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy(on_reject="zero", on_abstain="skip"), 'on_abstain="zero"'),
        (Policy(on_reject="drop", on_abstain="zero"), 'on_reject="zero"'),
        (Policy(on_abstain="raise"), "swallows exceptions"),
        (Policy(on_abstain="zero", on_long="scale"), 'on_long="keep"'),
    ],
)
def test_unsupported_policies_are_refused(policy, message):
    with pytest.raises(FrameworkError, match=message):
        guard(NoWord(), policy=policy)(reward_func)


def test_async_functions_and_lists_are_refused():
    async def reward(queries, prompts, labels):
        return {"rewards": 1.0}

    with pytest.raises(FrameworkError, match="does not await"):
        guard(NoWord(), policy=ZERO)(reward)
    with pytest.raises(FrameworkError, match="one reward function"):
        guard(NoWord(), policy=ZERO)([reward_func])
