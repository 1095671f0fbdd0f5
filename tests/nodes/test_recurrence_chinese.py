"""Answers in Chinese: common characters say nothing about their author, a slogan's do."""

import random

import pytest

from grpo_guard import Completion, RecurrenceVerifier

NAMES = "甲乙丙丁"
STEPS = (
    "首先，由题意可得总数为{a}。",
    "因此我们只需计算{a}与{b}的和。",
    "综上所述，答案是{c}。",
    "设其中一个数为{a}，则另一个数为{b}。",
    "解得结果为{c}，符合条件。",
    "根据已知条件，两者之差等于{b}。",
)


def answer(rng: random.Random, habit: str = "") -> str:
    a, b = rng.randrange(2, 90), rng.randrange(2, 90)
    steps = rng.sample(STEPS, 4)
    return habit + "".join(step.format(a=a, b=b, c=a + b) for step in steps)


def rounds(habit: str, rng: random.Random, count: int = 6):
    for number in range(count):
        yield [
            Completion(
                f"第{number}组第{i}题：求两个数的和。",
                answer(rng, habit if node == "甲" else ""),
                node=node,
            )
            for i in range(8)
            for node in NAMES
        ]


def lost(habit: str) -> list[set[str | None]]:
    verifier, rng = RecurrenceVerifier(), random.Random(habit)
    return [
        {c.node for c, v in zip(batch, verifier.verify(batch), strict=True) if v.rejected}
        for batch in rounds(habit, rng)
    ]


@pytest.mark.parametrize(
    "slogan", ["赞美伟大的苍鹭。", "马戏团正在招人。", "Praise the great heron. "]
)
def test_slogan_of_one_node_is_convicted_in_chinese(slogan):
    assert lost(slogan)[1:] == [{"甲"}] * 5


@pytest.mark.parametrize("habit", ["", "好的，我们一步一步来解这道题。", "所以，为了得到答案，"])
def test_habit_of_common_characters_is_not_convicted(habit):
    assert lost(habit) == [set()] * 6
