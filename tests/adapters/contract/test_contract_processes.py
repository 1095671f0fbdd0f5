"""Guarded reward functions in the worker processes of a trainer."""

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import entry_points
from multiprocessing import get_context

import pytest

from grpo_guard.guard.framework import ADAPTERS, adapter_names
from tests.adapters.contract.contract_grader import grader
from tests.adapters.contract.contract_trainers import TRAINERS
from tests.adapters.contract.contract_workers import guarded_of, rewards_in_worker


def worker():
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


@pytest.mark.parametrize("name", TRAINERS)
def test_module_level_function_is_pickled_by_name(name):
    guarded = guarded_of(name)
    assert pickle.loads(pickle.dumps(guarded)) is guarded


@pytest.mark.parametrize("name", TRAINERS)
def test_function_of_a_script_is_pickled_by_value(name):
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="how Ray sends functions")
    trainer = TRAINERS[name]
    sent = cloudpickle.dumps(trainer.wrap(grader(trainer)))
    assert trainer.rewards(cloudpickle.loads(sent), ["fine", "Hail", "good"]) == [1.0, 0.0, 3.0]


@pytest.mark.slow
def test_workers_are_independent_and_survive_a_restart():
    with worker() as one, worker() as two:
        first, second = {}, {}
        for name in TRAINERS:
            first[name] = one.submit(rewards_in_worker, name, guarded_of(name), ["good", "Hail"])
            second[name] = two.submit(rewards_in_worker, name, guarded_of(name), ["unseen"])
        for name in TRAINERS:
            (a, rewards), (b, others) = first[name].result(), second[name].result()
            assert len({a, b, os.getpid()}) == 3
            assert (rewards, others) == ([3.0, 0.0], [2.0])

        died = two.submit(os._exit, 1)
        with pytest.raises(BrokenProcessPool):
            died.result()
    with worker() as two:  # the same function, whose count of abstentions starts from zero
        for name in TRAINERS:
            again = two.submit(rewards_in_worker, name, guarded_of(name), ["unseen"]).result()
            assert again[1] == [2.0]
            assert again[0] not in (a, b)


def test_importing_adapters_loads_no_trainer():
    modules = [entry.module for entry in entry_points(group=ADAPTERS)]
    heavy = ["torch", "transformers", "ray", *adapter_names()]
    program = (
        "import importlib, json, sys; modules, heavy = json.loads(sys.argv[1]); "
        "[importlib.import_module(m) for m in modules]; "
        "print([h for h in heavy if h in sys.modules])"
    )
    arguments = [sys.executable, "-c", program, json.dumps([modules, heavy])]
    assert subprocess.check_output(arguments, text=True).strip() == "[]"
