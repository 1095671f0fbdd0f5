"""Names documented in earlier releases, with their current names.

Python consults the finder `Moved` after all others, both for modules and for names that `from
package import name` does not find. So anyone who upgrades is told the new name, and nothing that
exists is hidden.

A module that only moved is the same object under both names. Each class exists once, so pickles and
guard files (`type: package.module:Class`) with the old name still work.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from grpo_guard.core.pages import page

_ADAPTERS: Final = "grpo_guard.adapters"
_ROW: Final = "; a Row has the Completion as its .completion"
MOVED: Final = {
    "grpo_guard.nodes.standing_verifier": (
        "grpo_guard.nodes.exclusion_verifier: StandingVerifier is ExclusionVerifier"
    ),
    "grpo_guard.nodes.fortunes": (
        "grpo_guard.nodes.e_process: Fortune is EProcess; NodeEvidenceProcess is EProcessMemory of "
        "grpo_guard.nodes.e_process_memory"
    ),
    f"{_ADAPTERS}.verl_manager": f"{_ADAPTERS}.verl.manager",
    f"{_ADAPTERS}.verl_agent_loop": f"{_ADAPTERS}.verl.agent_loop",
    "grpo_guard.ledger": "grpo_guard.nodes: ledger.ledger is nodes.ledger",
    "grpo_guard.sandbox": "grpo_guard.evals.sandbox",
    f"{_ADAPTERS}.trl_batch": f"{_ADAPTERS}.trl.batch: completions_from is rows_from{_ROW}",
    f"{_ADAPTERS}.trl_peers": f"{_ADAPTERS}.trl.peers",
    f"{_ADAPTERS}.trl_trainer": f"{_ADAPTERS}.trl.trainer",
    f"{_ADAPTERS}.trl_ms_swift": f"{_ADAPTERS}.ms_swift",
    f"{_ADAPTERS}.verl_plugin": f"{_ADAPTERS}.verl.plugin",
    f"{_ADAPTERS}.openrlhf_agent": f"{_ADAPTERS}.openrlhf.agent",
    f"{_ADAPTERS}.openrlhf.completions_from": f"{_ADAPTERS}.openrlhf.reward.rows_from{_ROW}",
    f"{_ADAPTERS}.verl.completion_from": f"{_ADAPTERS}.verl.reward.row_from{_ROW}",
}
"""Name of a module or function in an earlier release -> its current name."""
FROM_THE_TOP: Final = {
    "AnswerWordsVerifier": "grpo_guard.content.screens.answer_words.AnswerWordsVerifier",
    "Calibrated": "grpo_guard.core.calibrated.Calibrated",
    "CompletionError": "grpo_guard.core.completion.CompletionError",
    "Detokenizer": "grpo_guard.core.detokenizer.Detokenizer",
    "FrameworkError": "grpo_guard.guard.framework.FrameworkError",
    "HonestScores": "grpo_guard.core.calibrated.HonestScores",
    "Ledger": "grpo_guard.guard.Ledger",
    "LengthScaling": "grpo_guard.content.length.scaling.LengthScaling",
    "LengthVerifier": "grpo_guard.content.length.verifier.LengthVerifier",
    "Message": "grpo_guard.core.prompts.Message",
    "PublicCoin": "grpo_guard.logprob.coin.PublicCoin",
    "ReferenceLikelihoodVerifier": (
        "grpo_guard.logprob.reference.verifier.ReferenceLikelihoodVerifier"
    ),
    "SpotCheck": "grpo_guard.guard.spot_checks.SpotCheck",
    "StandingVerifier": "grpo_guard.nodes.exclusion_verifier.ExclusionVerifier",
    "TailProbabilityVerifier": "grpo_guard.logprob.tail.TailProbabilityVerifier",
    "Usage": "grpo_guard.core.verdict.Usage",
    "Vote": "grpo_guard.core.ensemble.Vote",
    "only": "grpo_guard.core.ensemble.only",
}
"""Name that `grpo_guard` itself exported in 0.2.0 -> its full name now. The old name still works.
"""
METHODS: Final = {
    "Guard.under": "with_policy",
    "Guard.asking": "with_environment",
    "Guard.reviewed": "finish_review",
    "Guard.recorded": "record_verdicts",
    "Completion.told": "verified_spans",
}
"""Name of a public method or property before 0.3.0 -> its current name."""
REMOVED: Final = {
    "grpo_guard.FrequentFindings": "the wrapper was removed; on the verifier that finds the kind, "
    'set severity={KIND: "count"}',
    f"{_ADAPTERS}.nemo_rl": "the adapter for NeMo-RL was removed, because no package index has "
    f"NeMo-RL to test it with; {page('new-adapter')} has a recipe to copy",
}
"""Name in 0.2.0 or 0.1.0 -> why it was removed, and what to use instead."""


_FROM_THE_ROOT: Final = {
    "config": "live once option_names preset_options presets tree yaml_text",
    "core": (
        "arguments calibrated completion detokenizer ensemble files given jsonl model_paths "
        "naming options p_values prompts quoting redaction registry rollouts sampling "
        "sampling_mask supervise testing turns verdict verifier"
    ),
    "guard": (
        "abstentions admission decorator environment framework grader_pool grader_worker "
        "graders group_means idle metrics policy policy_checks references review settlement "
        "spot_checks spot_odds verdict_log"
    ),
}
"""Package -> its modules that used to be in `grpo_guard` itself."""
RELOCATED: Final[Mapping[str, str]] = {
    f"grpo_guard.{name}": f"grpo_guard.{package}.{name}"
    for package, names in _FROM_THE_ROOT.items()
    for name in names.split()
} | {
    "grpo_guard.distributed": "grpo_guard.server.distributed",
    "grpo_guard.identity": "grpo_guard.nodes.identity",
    "grpo_guard.nodes.recurrence": "grpo_guard.content.recurrence",
    "grpo_guard.reader": "grpo_guard.logprob.reader",
    "grpo_guard.remote": "grpo_guard.server.client",
    "grpo_guard.watching": "grpo_guard.guard.review",
}
"""Old name of a module or package that moved unchanged -> its current name. Both names work."""


_PLACES: Final = {
    "adapters": "areal:GuardedGroup prime_rl:GuardedScoring "
    "atropos.environment:GuardedEnv genrl.game:GuardedGame openrlhf.agent:GuardedAgent "
    "slime:SlimeAdapter tinker:GuardedGroups verl.agent_loop:GuardedManager "
    "verl.agent_loop:GuardedRollouts verl.manager:GuardedRewardManager",
    "content": "rules:RuleVerifier extras.language:LanguageVerifier extras.pii:PiiVerifier "
    "extras.secrets:SecretsVerifier extras.toxicity:ToxicityVerifier",
    "core": "given:Given testing:VerifierContract",
    "guard": "graders:GraderFailures references:References verdict_log:VerdictLog",
    "judge": "errors:BackendError errors:JudgeSetupError backends.base:Reply backends.base:Request",
    "logprob": "reader.reader:SpanReader reader.verifier:ReaderVerifier "
    "replay.generate:CoinSampling replay.vllm_processor:CoinProcessor "
    "scorers.transformers:TransformersScorer scorers.vllm:VLLMScorer",
    "nodes": "exclusion_verifier:ExclusionVerifier schema:LedgerError store:NodeStore "
    "identity.gate:Identity identity.keys:SigningKey identity.ring:KeyRing",
    "server": "client.verifier:RemoteVerifier distributed.scorer:RayScorer "
    "distributed.verifier:RayVerifier",
}
"""Folder -> MODULE:NAME of the classes in it that the documentation mentions and that are not
exported at the top."""


def place_of(name: str, top: Sequence[str] = ()) -> str | None:
    """Return the module to import a documented class from: ``grpo_guard`` if it is in ``top``, the
    exported names. None for any other name."""
    if name in top:
        return "grpo_guard"
    if name in FROM_THE_TOP:
        return FROM_THE_TOP[name].rpartition(".")[0]
    for folder, places in _PLACES.items():
        for place in places.split():
            module, _, called = place.rpartition(":")
            if called == name:
                return f"grpo_guard.{folder}.{module}"
    return None


def relocated(name: str) -> str | None:
    """Return the current name of a module that is in `RELOCATED` or inside a package in it; None
    for any other module."""
    package, rest = name, ""
    while package:
        if package in RELOCATED:
            return RELOCATED[package] + rest
        package, dot, last = package.rpartition(".")
        rest = f"{dot}{last}{rest}"
    return None


class _OldName(Loader):
    """Loads a module under its old name, so that both names refer to the same object.

    The old name of a package is an empty package without a path. If it had the package's path, the
    import system would load each submodule a second time.
    """

    def __init__(self, now: str) -> None:
        self._now = now
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        now = importlib.import_module(self._now)
        if not hasattr(now, "__path__"):
            self._spec = now.__spec__
            return now
        package = ModuleType(spec.name, now.__doc__)
        package.__path__ = []
        package.__dict__["__getattr__"] = lambda name: getattr(now, name)
        return package

    def exec_module(self, module: ModuleType) -> None:
        if self._spec is not None:  # the import system has replaced it with the old name's spec
            module.__spec__ = self._spec


class Moved:
    """A `sys.meta_path` finder for old names: loads a module that moved unchanged; for any other
    old name, raises an error with the new name or the reason for its removal."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in MOVED:
            # Not a ModuleNotFoundError: `from package import name` would replace its message.
            raise ImportError(f"{name} is now {MOVED[name]}", name=name)
        if name in REMOVED:
            raise ImportError(f"{name}: {REMOVED[name]}", name=name)
        if (now := relocated(name)) is not None and importlib.util.find_spec(now) is not None:
            warnings.warn(f"{name} is now {now}", DeprecationWarning, stacklevel=2)
            return ModuleSpec(name, _OldName(now), is_package=False)
        package, _, last = name.rpartition(".")
        if package.split(".")[0] == "grpo_guard" and (place := place_of(last, exported())):
            raise ImportError(f"{last} is in {place}: from {place} import {last}", name=name)
        return None


def exported() -> Sequence[str]:
    """Return the names that `grpo_guard` exports."""
    return getattr(sys.modules.get("grpo_guard"), "__all__", ())


def from_the_top(name: str) -> Any:
    """Return the object that was `grpo_guard.name` in 0.2.0, with a DeprecationWarning; None if
    there was no such object."""
    if name not in FROM_THE_TOP:
        return None
    module, _, now = FROM_THE_TOP[name].rpartition(".")
    message = f"grpo_guard.{name} is now {module}.{now}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(module), now)


def renamed(owner: type, name: str) -> AttributeError:
    """Build the error for a missing attribute; for a renamed method, it gives the new name."""
    message = f"{owner.__name__!r} object has no attribute {name!r}"
    for base in owner.__mro__:
        if now := METHODS.get(f"{base.__name__}.{name}"):
            message += f": it is now {now!r}"
    return AttributeError(message, name=name)


def install() -> None:
    """Append the finder `Moved` to `sys.meta_path`, once per process."""
    if Moved not in sys.meta_path:
        sys.meta_path.append(Moved)
