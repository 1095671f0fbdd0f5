"""The two services: what they answer, and how they refuse."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import Guard, Policy
from grpo_guard.core.verdict import accept
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.release import release
from grpo_guard.server.bodies import Queries
from grpo_guard.server.limits import Limits
from grpo_guard.server.rewards import Rewards, protocol_policy
from tests.server.server_parts import Words, client, rewards_of, strict, verdicts_of

STRANGE = ["", "\ud800", "\x00\x1b[2J", "é" * 100_000, "\u2028{}%s", "NaN", '"}]', "Hail \udfff"]


def test_get_reward_answers_1_and_0_in_order():
    verifier = Words()
    answer = rewards_of(client(verifier), "fine", "Hail", "unseen", "good")
    assert answer == {
        "rewards": [1.0, 0.0, 0.0, 1.0],
        "scores": [1.0, 0.0, 0.0, 1.0],
        "extra_logs": {
            "guard_accept": [1.0, 0.0, 0.0, 1.0],
            "guard_reject": [0.0, 1.0, 0.0, 0.0],
            "guard_abstain": [0.0, 0.0, 1.0, 0.0],
        },
    }
    assert [(c.prompt, c.text) for c in verifier.shown][:2] == [("3+4?", "fine"), ("3+4?", "Hail")]
    assert verifier.shown[0].reference == "7"


def test_number_as_reference_is_its_text():
    verifier = Words()
    rows = [{"prompt": "3+4?", "text": "fine", "reference": 7}]
    assert strict(client(verifier).post("/v1/verify", json={"completions": rows}))
    assert verifier.shown[0].reference == "7"


@pytest.mark.parametrize("texts", [["fine"], ["fine", "Hail", "fine"], []])
def test_custom_reward_function(texts):
    def grade(queries, prompts, labels):
        assert len(queries) == len(prompts) == len(labels)
        return {"rewards": [5.0] * len(queries), "extra_logs": {"length": 3, "bad": math.nan}}

    answer = rewards_of(client(reward=grade), *texts)
    assert answer["rewards"] == answer["scores"] == [0.0 if t == "Hail" else 5.0 for t in texts]
    if texts:
        assert answer["extra_logs"]["length"] == [3.0] * len(texts)
        assert answer["extra_logs"]["bad"] == [0.0] * len(texts)


def test_prompts_and_labels_are_optional_and_passed_unchanged():
    web = client()
    assert strict(web.post("/get_reward", json={"query": ["fine"]}))["rewards"] == [1.0]
    asked = {"query": ["fine"], "prompts": None, "labels": [7], "images": []}
    assert strict(web.post("/get_reward", json=asked))["rewards"] == [1.0]
    asked = {"query": ["fine"] * 3, "prompts": [""] * 3, "labels": [["7"], {"a": 7}, True]}
    assert strict(web.post("/get_reward", json=asked))["rewards"] == [1.0] * 3


@pytest.mark.parametrize("more", [{}, {"labels": None}])
def test_reward_function_is_not_called_without_labels(more):
    """An empty text in their place would pay everyone."""
    verifier = Words()

    def grade(queries, prompts, labels):
        return [float(label in query) for query, label in zip(queries, labels, strict=True)]

    web = client(verifier, grade)
    refused = strict(web.post("/get_reward", json={"query": ["fine"], **more}), 422)
    assert refused == {
        "error": "labels: expected a list, one per query, got nothing", "field": "labels"
    }  # fmt: skip
    assert verifier.shown == []


def test_empty_labels_of_openrlhf_warn_once(caplog):
    web = client(reward=lambda queries, prompts, labels: [float(not label) for label in labels])
    for _ in range(2):
        asked = {"query": ["fine"], "prompts": [""], "labels": [""]}
        assert strict(web.post("/get_reward", json=asked))["rewards"] == [1.0]
    assert caplog.text.count("got an empty label") == 1


def test_verify_answers_like_the_command():
    web = client()
    first, second = verdicts_of(web, "Hail", "fine")
    assert set(first) == {
        "index", "outcome", "cause", "p_value", "findings", "verifier", "seconds", "members",
    }  # fmt: skip
    assert (first["index"], first["outcome"], second["index"], second["outcome"]) == (
        0, "reject", 1, "accept",
    )  # fmt: skip
    assert verdicts_of(web) == []


def test_hostile_texts_are_judged_like_any_other():
    web = client()
    assert [v["outcome"] for v in verdicts_of(web, *STRANGE)] == ["accept"] * 7 + ["reject"]
    assert rewards_of(web, *STRANGE)["rewards"] == [1.0] * 7 + [0.0]


def test_failing_verifier_abstains_only_on_the_culprit():
    outcomes = [v["outcome"] for v in verdicts_of(client(), "fine", "break", "Hail")]
    assert outcomes == ["accept", "abstain", "reject"]


class NoNumber(Words):
    def _verdict(self, text):
        return accept(self.name, seconds=math.nan)


def test_nan_in_a_verdict_is_null_in_the_reply():
    assert [v["seconds"] for v in verdicts_of(client(NoNumber()), "a", "b")] == [None, None]


class FullDisk:
    def record(self, batch, verdicts):
        raise OSError("disk full")


def test_failing_ledger_gives_neither_verdict_nor_reward(caplog):
    web = client(ledger=FullDisk(), policy=Policy(on_abstain="pass"))
    assert [(v["outcome"], v["cause"]) for v in verdicts_of(web, "fine")] == [("abstain", "fault")]
    assert rewards_of(web, "fine")["rewards"] == [0.0]
    assert "disk full" in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("/v1/verify", b"", "(body): expected a JSON object, got invalid JSON"),
        ("/v1/verify", b"\xff{}", "(body): expected UTF-8 text, got byte 0xff at offset 0"),
        ("/v1/verify", b"[" * 1000, "(body): expected a JSON object, got one nested too deeply"),
        ("/v1/verify", b'{"completions": [1' + b"0" * 5000 + b"]}", "got invalid JSON"),
        ("/v1/verify", b'{"a": ' + b"[]," * 100_000, "(body): expected at most 262144 values"),
        ("/v1/verify", b'{"a": ' + b'"",' * 300_000, "(body): expected at most 262144 values"),
        ("/v1/verify", b'{"a": 1' + b"]" * 100_000, "(unmatched brackets)"),
        ("/v1/verify", b'{"completions": [], "completions": []}', "got 'completions' twice"),
        ("/get_reward", b'{"query": ["a"], "labels": [{"a": 1, "\\u0061": 2}]}', "got 'a' twice"),
        ("/v1/verify", b"[]", "(body): expected a JSON object, got list"),
        ("/v1/verify", b"{}", "completions: expected a list, got nothing"),
        ("/v1/verify", b'{"completions": {}}', "completions: expected a list, got dict"),
        ("/v1/verify", b'{"completions": [], "\\ud800": 1}', "expected only completions"),
        ("/get_reward", b"null", "(body): expected a JSON object, got NoneType"),
        ("/get_reward", b'{"query": "text"}', "query: expected a list, got str"),
        ("/get_reward", b'{"query": ["a", 1]}', "query[1]: expected a string, got int"),
        ("/get_reward", b'{"query": ["a"], "prompts": [[]]}', "prompts[0]: expected a string"),
        ("/get_reward", b'{"query": ["a"], "prompts": []}', "prompts: expected 1, one per query"),
    ],
)
def test_invalid_bodies_are_refused_and_nothing_is_verified(path, body, complaint):
    verifier = Words()
    answer = strict(client(verifier).post(path, content=body), 422)
    assert complaint in answer["error"]
    assert len(answer["error"]) < 400
    assert verifier.shown == []


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": "x"}, "text"),
        ({"prompt": "x", "text": 7}, "text"),
        ({"prompt": "x", "text": "y", "txt\ud800" * 9999: 1}, "txt"),
        ({"prompt": "x", "text": "y", "round": 10**25}, "round"),
        ({"prompt": "x", "text": "y", "id": 1.5}, "id"),
        ("text", "(completion)"),
    ],
)
def test_invalid_completion_is_named_and_nothing_is_verified(row, field):
    verifier = Words()
    body = json.dumps({"completions": [{"prompt": "x", "text": "fine"}, row]})
    answer = strict(client(verifier).post("/v1/verify", content=body), 422)
    assert answer["index"] == 1
    assert answer["field"].startswith(field)
    assert answer["error"].startswith(f"completions[1]: {field}")
    assert verifier.shown == []


def test_verdicts_repeat_the_ids_that_were_sent():
    known = ["row 1", None, 7, "\ud800"]
    asked = [{"prompt": "x", "text": "fine", "id": name} for name in known]
    web = client()
    found = strict(web.post("/v1/verify", content=json.dumps({"completions": asked})))["verdicts"]
    assert [verdict.get("id") for verdict in found] == known
    assert "id" not in found[1]  # as in the answers to clients that send none
    misspelt = {"prompt": "x", "text": "fine", "ids": 1}
    refused = strict(web.post("/v1/verify", json={"completions": [misspelt]}), 422)
    assert "'id' in its place" in refused["error"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("prompt", "text", "prompt_ids", "completion_ids", "node", "group", "round", "slot",
         "rollout", "reference", "task", "finish_reason", "sampler_logprobs",
         "metadata", "id")  # fmt: skip
ROW = st.fixed_dictionaries(
    {"prompt": ANYTHING, "text": st.text(st.characters())},
    optional=dict.fromkeys(NAMES[2:], ANYTHING),
)
# Hypothesis also draws strings from this folder's sources: at "wait" a verifier would block for a
# minute.
READY = Words()
READY.go.set()
WEB = client(READY)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(ROW | ANYTHING, max_size=3), st.none() | st.lists(ANYTHING, max_size=3))
def test_any_body_gets_an_answer_or_a_refusal(rows, more):
    bodies = {
        "/v1/verify": {"completions": rows},
        "/get_reward": {"query": [str(row) for row in rows], "prompts": more, "labels": more},
    }
    for path, body in bodies.items():
        answer = WEB.post(path, content=json.dumps(body))
        assert answer.status_code in (200, 422)
        found = strict(answer, answer.status_code)
        if answer.status_code == 200:
            assert len(found["verdicts" if "verdicts" in found else "rewards"]) == len(rows)


def test_deep_nesting_within_a_completion_is_an_answer_or_a_refusal():
    web = client()
    for depth in range(100, 1000, 60):
        nested = "[" * depth + "]" * depth
        for body in (f'{{"prompt": {nested}, "text": "fine"}}',
                     f'{{"prompt": "x", "text": "fine", "metadata": {{"a": {nested}}}}}',
                     f'{{"prompt": "x", "text": {nested}}}'):  # fmt: skip
            answer = web.post("/v1/verify", content='{"completions": [' + body + "]}")
            strict(answer, answer.status_code)
            assert answer.status_code in (200, 422)


def test_reward_function_error_is_named_without_its_message(caplog):
    errors = [ValueError("/secret"), SystemExit(3), StopIteration(), TimeoutError("api")]

    def grade(queries, prompts, labels):
        raise errors.pop()

    web = client(reward=grade)
    while errors:
        answer = strict(web.post("/get_reward", json={"query": ["fine"], "labels": [""]}), 500)
        assert "secret" not in answer["error"]
    assert "/secret" in caplog.text
    assert "TimeoutError: api" in caplog.text
    assert [v["outcome"] for v in verdicts_of(web, "fine")] == ["accept"]


def test_policies_beyond_the_protocol_earn_nothing_with_a_warning():
    assert protocol_policy(Policy(on_abstain="pass", on_reject=-1.0)) == (
        Policy(on_abstain="pass", on_reject=-1.0), [],
    )  # fmt: skip
    for asked in (Policy("drop", "skip"), Policy("zero", "raise"), Policy(on_long="scale")):
        policy, notes = protocol_policy(asked)
        assert (policy.on_reject, policy.on_abstain, policy.on_long) == ("zero", "zero", "keep")
        assert notes
        assert rewards_of(client(policy=asked), "unseen", "Hail")["rewards"] == [0.0, 0.0]
    assert rewards_of(client(policy=Policy(on_reject=-1.0)), "Hail")["rewards"] == [-1.0]


def test_functions_that_openrlhf_could_not_call_are_refused():
    async def grade(queries, prompts, labels):
        return 1.0

    for wrong in (grade, [grade], "model", 3):
        with pytest.raises(FrameworkError):
            client(reward=wrong)


def test_late_answer_has_the_log_names_of_earlier_ones():
    verifier = Words()
    rewards = Rewards(Guard(verifier), lambda queries, prompts, labels: {
        "rewards": 1.0, "extra_logs": {"length": 3}})  # fmt: skip
    asked = Queries(["fine"], [""], [""])
    shown = rewards.admitted(asked)
    known = rewards.of(asked, shown, verifier.verify(shown.unsettled))["extra_logs"].keys()
    late = rewards.abstained(2)
    assert late["extra_logs"].keys() == known
    assert (late["rewards"], late["extra_logs"]["guard_abstain"]) == ([0.0, 0.0], [1.0, 1.0])


def test_bounds_must_be_positive():
    with pytest.raises(ValueError, match=r"Limits\.running: expected a number > 0, got 0"):
        Limits(running=0)


def test_watching_guard_returns_the_functions_rewards():
    watch = Policy("keep", "zero", "scale", max_abstain_rate=0.0, abstain_window=1)
    assert rewards_of(client(policy=watch), "fine", "Hail", "unseen")["rewards"] == [1.0, 1.0, 1.0]

    def grade(queries, prompts, labels):
        return {"rewards": [-0.3, 5.0, 2.0], "scores": [0.0, 1.0, 0.5]}

    for _ in range(3):
        answer = rewards_of(client(policy=watch, reward=grade), "fine", "Hail", "unseen")
        assert answer["rewards"] == [-0.3, 5.0, 2.0]
        assert answer["scores"] == [0.0, 1.0, 0.5]
        assert answer["extra_logs"]["guard_reject"] == [0.0, 1.0, 0.0]
        assert answer["extra_logs"]["guard_abstain"] == [0.0, 0.0, 1.0]
    assert protocol_policy(Policy("keep", "raise"))[1] == [
        "/get_reward does not support on_abstain: raise"
    ]


def test_late_watching_guard_costs_no_reward():
    verifier = Words()
    web = client(verifier, policy=Policy("keep"), reward=lambda q, p, labels: [7.0], seconds=0.2)
    try:
        answer = strict(web.post("/get_reward", json={"query": ["wait"], "labels": ["7"]}))
    finally:
        verifier.go.set()
    assert answer["rewards"] == [7.0]
    assert answer["extra_logs"]["guard_abstain"] == [1.0]


def test_conviction_and_release_are_each_logged_once(tmp_path, caplog):
    path, hostile = tmp_path / "nodes.sqlite", "mal\x1b[2J" + "y" * 300
    with client(ledger=EvidenceLedger(path)) as web:

        def play(first, last):
            for turn in range(first, last):
                rows = [
                    {"prompt": f"{turn} {i}", "text": "Hail" if node == hostile else f"{node} {i}",
                     "node": node, "round": turn}
                    for node in ("ann", "bob", "cid", hostile) for i in range(12)
                ]  # fmt: skip
                assert web.post("/v1/verify", json={"completions": rows}).status_code == 200

        play(0, 12)
        (said,) = [r.message for r in caplog.records if "is convicted" in r.message]
        assert f"grpo-guard ledger show {path}" in said
        assert "node 'mal\\x1b[2Jyyy" in said
        assert len(said) < 200 + len(str(path))
        caplog.clear()
        release(path, hostile)
        play(12, 14)
        (said,) = [r.message for r in caplog.records if r.levelname == "WARNING"]
        assert "is released" in said
        assert f"grpo-guard ledger show {path}" in said


def test_unknown_path_is_answered_with_the_known_ones():
    answer = client().post("/verify", json={"completions": []})
    assert answer.status_code == 404
    assert "POST /v1/verify" in answer.json()["error"]


def test_first_rejection_of_a_node_by_a_verifier_is_logged_once(caplog):
    rows = [
        {"prompt": "1", "text": "Hail", "node": "mal"},
        {"prompt": "2", "text": "Hail", "node": "mal\x1b[2J" + "y" * 300},
        {"prompt": "3", "text": "Hail \x1b"},
        {"prompt": "4", "text": "fine", "node": "ann"},
    ]
    with client() as web:
        for _ in range(2):
            assert web.post("/v1/verify", json={"completions": rows}).status_code == 200
    found = [r.getMessage() for r in caplog.records if "first rejection" in r.getMessage()]
    assert len(found) == 3
    assert found[0].startswith("node 'mal': first rejection by words: ")
    assert all(line.isprintable() for line in found)
    assert found[2].startswith("a node without a name: first rejection by words: ")
