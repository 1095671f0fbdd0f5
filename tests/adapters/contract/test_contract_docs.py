"""The how-to page shows exactly the adapter and the line that the suite runs."""

import dataclasses
from dataclasses import dataclass, field

from tests.adapters.contract.contract_trainers import EXAMPLES, TRAINERS, Trainer

HERE = EXAMPLES.parents[1] / "tests" / "adapters" / "contract"
HOW_TO = EXAMPLES.parent / "new-adapter.md"


@dataclass(slots=True, kw_only=True)
class RewardOutput:
    """rLLM's function, as published."""

    reward: float
    metadata: dict = field(default_factory=dict)
    is_correct: bool | None = None


@dataclass
class Action:
    action: object = None


@dataclass
class ModelOutput:
    text: str


def test_page_shows_the_code_that_runs():
    page = HOW_TO.read_text(encoding="utf-8")
    adapter = (EXAMPLES / "rllm_adapter.py").read_text(encoding="utf-8")
    assert f"```python\n{adapter}```" in page
    assert len(adapter.splitlines()) <= 40
    table = (HERE / "contract_trainers.py").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in table if line.startswith('    "rllm":')]
    assert f"```python\n{line}\n```" in page
    for ability in dataclasses.fields(Trainer)[3:]:
        assert f"`{ability.name}" in page


def test_example_adapter_changes_only_the_reward():
    def grade(task_info, action):
        return RewardOutput(reward=1.0, metadata={"steps": 2}, is_correct=True)

    guarded = TRAINERS["rllm"].wrap(grade)
    task = {"question": "3+4?", "ground_truth": "7"}
    assert guarded(task, "fine") == grade(task, "fine")
    assert guarded(task_info=task, action="Hail") == dataclasses.replace(
        grade(task, ""), reward=0.0
    )
    assert guarded(task, Action(ModelOutput("Hail"))).reward == 0.0
    assert guarded({}, ModelOutput("fine")).reward == 1.0
    assert guarded(task, Action(None)).reward == 0.0
