"""What ``/get_reward`` pays without a reward function, and what both paths warn of together."""

import pytest
from starlette.testclient import TestClient

from grpo_guard import Guard, Policy, presets
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.server.app import create_app
from tests.server.server_parts import client, strict

WRONG = {"query": ["2+3? 2+3=6"], "prompts": ["2+3?"]}


@pytest.mark.parametrize("labels", [["5"], [5], ["6 or so"], None])
def test_a_wrong_sum_is_not_paid_whatever_the_label(labels):
    web = client(presets.different_weights().verifier)
    answer = strict(web.post("/get_reward", json=WRONG | {"labels": labels}))
    assert answer["rewards"] == answer["scores"] == [0.0]


def test_right_and_unchecked_answers_are_paid():
    web = client(presets.different_weights().verifier)
    asked = {"query": ["2+3? 2+3=5", "2+3? Five."], "prompts": ["2+3?"] * 2, "labels": ["5"] * 2}
    assert strict(web.post("/get_reward", json=asked))["rewards"] == [1.0, 1.0]


def test_what_a_wrong_answer_excuses_is_the_graders_to_pay():
    web = client(presets.different_weights().verifier, reward=lambda q, p, labels: [0.25])
    assert strict(web.post("/get_reward", json=WRONG | {"labels": ["5"]}))["rewards"] == [0.25]


def test_both_paths_share_the_warnings_that_come_once(caplog):
    web = TestClient(create_app(presets.different_weights()))
    row = {"prompt": "2+3?", "text": "2+3=6"}
    for _ in range(2):
        strict(web.post("/v1/verify", json={"completions": [row]}))
        strict(web.post("/get_reward", json=WRONG))
    assert caplog.text.count("This warning comes once") == 1
    assert caplog.text.count("first rejection by arithmetic") == 1


def test_a_node_is_named_in_the_log_as_it_is(caplog):
    web = client()
    rows = [{"prompt": "2", "text": "Hail", "node": node} for node in ("李雷", "b\u043eb\u202e")]
    strict(web.post("/v1/verify", json={"completions": rows}))
    assert "node '李雷': first rejection" in caplog.text
    assert "node 'b\\u043eb\\u202e': first rejection" in caplog.text


def test_many_doubtful_findings_do_not_hide_the_one_that_earns_nothing():
    web = client(presets.different_weights().verifier)
    doubtful = "".join(f"x * 2 + {i} = {i + 9}. " for i in range(30))
    asked = {"query": [f"How many?{doubtful}So 12 * 4 = 50. The answer is 51."]}
    asked |= {"prompts": ["How many?"], "labels": ["48"]}
    assert strict(web.post("/get_reward", json=asked))["rewards"] == [0.0]


def test_a_rejection_keeps_what_the_policy_pays_for_it():
    rule = ArithmeticVerifier(severity={"wrong_inequality": "reject"})
    web = TestClient(create_app(Guard(rule, policy=Policy(on_reject=-1.0))))
    text = "First 2 + 3 = 6. Also 2 > 5. So the answer is 17. #### 17"
    asked = {"query": [f"How many?{text}"], "prompts": ["How many?"], "labels": ["42"]}
    assert strict(web.post("/get_reward", json=asked))["rewards"] == [-1.0]
