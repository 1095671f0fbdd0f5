"""A judge in this process: any causal language model that transformers can load."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.arguments import require_count
from grpo_guard.core.forks import Lock
from grpo_guard.core.quoting import one_line
from grpo_guard.core.verdict import Cause
from grpo_guard.judge.backends.base import Backend, Reply, Request
from grpo_guard.judge.errors import BackendError, JudgeSetupError

if TYPE_CHECKING:
    from grpo_guard.judge.backends.transformers_model import LoadedModel

INSTALL: Final = "pip install 'grpo-guard[torch]'"


class TransformersBackend(Backend):
    """Asks a local model, on the CPU or a GPU.

    With ``top_logprobs`` and ``max_tokens=1`` a request costs one forward pass, and its reply lists
    every token of the vocabulary that reads yes or no, plus the most likely tokens. Other requests
    are answered by greedy generation. Calls run one at a time.

    A completion's text never becomes a special token: message contents are encoded separately from
    the chat template. A model without a chat template gets the system message, a blank line, the
    user message and, on a separate line, ``Answer:``.

    A prompt longer than ``max_prompt_tokens`` gets an empty reply whose ``finish_reason`` is
    ``"overlong"``: the author is responsible for the length, which must not cost the other requests
    in the batch their answers.

    Args:
        model: Folder or hub id of the model.
        device: A torch device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` ...
        batch_size: Number of prompts per forward pass.
        dtype: Name of a torch dtype, or ``"auto"`` for the dtype the weights were saved in.
            Defaults to float32 on the CPU and ``"auto"`` elsewhere.
        max_prompt_tokens: Maximum length of a prompt; None for the model's context window minus the
            answer.
        revision: Revision of a hub id; use a commit hash, otherwise the owner can change the
            weights.
        local_files_only: If True, never contact the hub.

    Raises:
        ValueError: an argument is out of range.
    """

    concurrency = 1

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "cpu",
        batch_size: int = 32,
        dtype: str | None = None,
        max_prompt_tokens: int | None = None,
        revision: str = "",
        local_files_only: bool = False,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("max_prompt_tokens", max_prompt_tokens)):
            if value is not None:
                require_count(name, value)
        self.model = str(model)
        self.device = device
        self.batch_size = batch_size
        self.dtype = dtype or ("float32" if device == "cpu" else "auto")
        self.max_prompt_tokens = max_prompt_tokens
        self.revision = revision
        self.local_files_only = local_files_only
        self._loaded: LoadedModel | None = None
        self._lock = Lock()

    @property
    def identity(self) -> str:
        # The dtype and the prompt limit change answers.
        return repr((super().identity, self.dtype, self.max_prompt_tokens))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_loaded": None}

    async def ask(self, requests: Sequence[Request], *, timeout: float) -> list[Reply]:
        # A running forward pass cannot be stopped: the next call waits for it.
        call = asyncio.to_thread(self._ask, tuple(requests))
        try:
            return await asyncio.wait_for(call, timeout)
        except TimeoutError:
            message = f"{self.model}: no answer within {timeout:g} s"
            raise BackendError(message, cause=Cause.TIMEOUT) from None

    async def check(self) -> None:
        await asyncio.to_thread(self._locked_model)

    def _ask(self, requests: tuple[Request, ...]) -> list[Reply]:
        model = self._locked_model()
        from grpo_guard.logprob.scorers.memory import ran_out_of_memory, release_cached_memory

        with self._lock:
            try:
                return model.answer(requests)
            except Exception as error:
                if not ran_out_of_memory(error):
                    raise
                message = f"{self.model}: out of memory on {self.device}: {one_line(str(error))}"
        release_cached_memory()
        raise BackendError(message, cause=Cause.OUT_OF_MEMORY)

    def _locked_model(self) -> "LoadedModel":
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> "LoadedModel":
        try:
            from grpo_guard.judge.backends.transformers_model import LoadedModel
            from grpo_guard.logprob.scorers.load import load_policy
            from grpo_guard.logprob.scorers.memory import ran_out_of_memory
        except ImportError as error:
            raise JudgeSetupError(
                f"the transformers backend needs {error.name}: {INSTALL}"
            ) from None
        try:
            model, tokenizer = load_policy(
                self.model,
                dtype=self.dtype,
                device=self.device,
                revision=self.revision or None,
                local_files_only=self.local_files_only,
            )
            return LoadedModel(model, tokenizer, self.max_prompt_tokens)
        except Exception as error:  # loaders raise all kinds of errors
            if ran_out_of_memory(error.__cause__ or error):
                message = f"{self.model}: does not fit on {self.device}"
                raise BackendError(message, cause=Cause.OUT_OF_MEMORY, retry=False) from error
            raise JudgeSetupError(
                f"model {self.model!r} cannot be loaded on {self.device!r}: {one_line(str(error))}"
                "; give a folder with config.json, written by save_pretrained with weights in "
                "safetensors, or the id of a causal language model that the hub serves"
            ) from error
