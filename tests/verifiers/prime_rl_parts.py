"""prime-rl's own classes if its package can be imported, otherwise a small reimplementation.

prime-rl is on no package index. With its checkout on the path these tests run against its own
files::

    PYTHONPATH=PRIME_RL/src:PRIME_RL/packages/prime-rl-configs/src make test-verifiers

(which also needs torch, msgspec and loguru). The reimplementation below is ours. It mirrors what
the adapter relies on in prime-rl at 559b44772e471d1538537b8805cc77f3824a5e64 (21 August 2026):

* ``orchestrator/algo/base.py``: `iter_trainable_traces`, `Algorithm.finalize_group`;
* ``orchestrator/algo/grpo.py``: `GRPOAlgorithm.score_group` without a length penalty;
* ``orchestrator/algo/routing.py``: `assign_advantages`;
* ``orchestrator/curriculum``: `AdmissionGate`, `Curriculum.on_result`, its state and metrics;
* ``orchestrator/train_sink.py``: the order of `TrainSink.process_group`, which lists the group's
  traces *before* they are scored and makes samples of them after admission.
"""

import asyncio
import sys
import types
from types import SimpleNamespace

import verifiers.v1 as vf

try:
    import prime_rl.orchestrator.train_sink as real
except ImportError:
    real = None


def iter_trainable_traces(episodes):
    for episode in episodes:
        for trace in episode.traces:
            if trace.has_error or not trace.agent.trainable:
                continue
            if any(any(node.mask) for node in trace.nodes):
                yield episode, trace


class GRPOAlgorithm:
    def __init__(self, config, policy_pool):
        self.length_penalty = config.length_penalty

    async def score_group(self, episodes):
        traces = [trace for _, trace in iter_trainable_traces(episodes)]
        mean = sum(trace.reward for trace in traces) / len(traces)
        for trace in traces:
            for node in trace.nodes:
                if any(node.mask):
                    node.advantages = [trace.reward - mean] * sum(node.mask)

    async def finalize_group(self, episodes):
        await self.score_group(episodes)


class Curriculum:
    def __init__(self, config, tasks):
        self.gates = {}

    def on_result(self, group):
        decisions = [gate.admit(group) for gate in self.gates.values()]
        assert all(isinstance(decision, bool) for decision in decisions)
        return all(decisions)

    def state_dict(self):
        return {"sampler": {}, "gates": {n: gate.state_dict() for n, gate in self.gates.items()}}

    def load_state_dict(self, state_dict):
        assert set(state_dict["gates"]) == set(self.gates)
        for name, gate in self.gates.items():
            gate.load_state_dict(state_dict["gates"][name])

    def metrics(self):
        return {
            f"gate/{name}/{k}": float(v)
            for name, gate in self.gates.items()
            for k, v in gate.metrics().items()
        }


def _modeled():
    """prime-rl's registries if available."""
    algo = types.ModuleType("prime_rl.orchestrator.algo")
    algo.ALGORITHM_CLASSES = {"grpo": GRPOAlgorithm}
    source = types.ModuleType("prime_rl.orchestrator.train_source")
    source.Curriculum = Curriculum
    package = types.ModuleType("prime_rl")
    package.orchestrator = types.ModuleType("prime_rl.orchestrator")
    package.orchestrator.algo, package.orchestrator.train_source = algo, source
    for module in (package, package.orchestrator, algo, source):
        sys.modules[module.__name__] = module


if real is None:
    _modeled()


def algorithm(name="grpo"):
    """As `build_algorithm` creates it."""
    from prime_rl.orchestrator.algo import ALGORITHM_CLASSES

    return ALGORITHM_CLASSES[name](SimpleNamespace(length_penalty=None), None)


def curriculum(task):
    import prime_rl.orchestrator.train_source as source

    return source.Curriculum(None, [task])


def shipped(algo, admission, group):
    """Trace id -> advantage, for the traces of a finished group that make samples."""
    if real is not None:
        return asyncio.run(_really_shipped(algo, admission, group))
    survivors = [trace for _, trace in iter_trainable_traces(group)]
    asyncio.run(algo.finalize_group(group))
    if not admission.on_result(group):
        return {}
    found = {}
    for trace in survivors:
        drawn = [node for node in trace.nodes if any(node.mask)]
        if drawn:
            found[trace.id] = drawn[0].advantages[0]
    return found


async def _really_shipped(algo, admission, group):
    env = SimpleNamespace(
        algorithm=algo,
        config=SimpleNamespace(group_size=len(group)),
        sampling_args={"temperature": 1.0},
    )
    config = SimpleNamespace(
        max_off_policy_steps=8, seq_len=64, train=SimpleNamespace(filter_zero_advantages=True)
    )
    sink = real.TrainSink(
        config, tokenizer=None, train_envs=SimpleNamespace(get=lambda name: env),
        mm_token_type_ids_mapping=None, progress=real.Progress(), batch_size=4096,
        token_batch_size=None, on_result=admission.on_result,
    )  # fmt: skip
    for episode in group:
        sink.pending_groups[episode.group.id].append(episode)
    await sink.process_group(group[0].group.id)
    return {
        name: next(a for a in samples[0].advantages if a is not None and a != 0.0)
        if any(samples[0].advantages)
        else 0.0
        for name, samples in sink.pending_batch.items()
    }


def episode(task, trace, group="g", version=3):
    """As the dispatcher passes it to the sink."""
    span = vf.PolicySpan(start=version, end=version)
    return vf.Episode(
        env=vf.EnvInfo(id="sums", name="sums"), task=trace.task, group=vf.GroupInfo(id=group),
        run=vf.TrainRunInfo(id="run", work=vf.TrainWorkInfo(step=4, policy=span)),
        traces=[trace], ok=True,
    )  # fmt: skip
