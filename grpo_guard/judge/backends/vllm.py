"""vLLM's offline engine in this process: a whole batch of questions in one go.

Use this if the judge has the GPU to itself. If the trainer's own vLLM runs as a server, query that
server through the ``openai`` backend instead.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_guard.core.forks import Lock
from grpo_guard.core.model_paths import warn_unpinned
from grpo_guard.core.verdict import Cause
from grpo_guard.judge.backends.base import Backend, Reply, Request
from grpo_guard.judge.errors import BackendError, JudgeSetupError

if TYPE_CHECKING:
    from grpo_guard.judge.backends.chat_ids import ChatEncoder


class VLLMBackend(Backend):
    """A model in vLLM's offline engine.

    Args:
        model: Path or hub id of a model with a chat template.
        batch_size: Maximum number of requests passed to the engine at once; the engine schedules
            them itself.
        revision: Revision of the model; use a commit hash, otherwise the owner can change the
            weights.
        engine: Extra arguments for ``vllm.LLM``, e.g. ``{"gpu_memory_utilization": 0.3}``.
    """

    concurrency = 1  # there is one engine; a second call would wait for it anyway

    def __init__(
        self,
        model: str,
        *,
        batch_size: int = 256,
        revision: str = "",
        engine: dict[str, Any] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"VLLMBackend.batch_size: expected >= 1, got {batch_size!r}")
        self.model = os.fspath(model)
        self.batch_size = batch_size
        self.revision = revision
        self.engine = dict(engine or {})
        self._lock = Lock()
        self._llm: Any = None
        self._encoder: ChatEncoder | None = None

    @property
    def identity(self) -> str:
        # Engine arguments such as quantisation or length limits change the answers.
        return repr((super().identity, sorted(self.engine.items())))

    async def ask(self, requests: Sequence[Request], *, timeout: float) -> list[Reply]:
        # A batch runs to completion regardless of the timeout: the engine cannot be stopped from
        # outside, and the next batch waits for the lock.
        return await asyncio.to_thread(self._ask, requests)

    async def check(self) -> None:
        await asyncio.to_thread(self._check)

    def _check(self) -> None:
        with self._lock:
            tokenizer = self._loaded().get_tokenizer()
        if getattr(tokenizer, "chat_template", None) is None:
            raise JudgeSetupError(
                f"backend 'vllm': expected a model with a chat template, got {self.model!r}; "
                "choose an instruct model"
            )

    def _ask(self, requests: Sequence[Request]) -> list[Reply]:
        with self._lock:
            llm = self._loaded()
            longest = llm.llm_engine.model_config.max_model_len
            if self._encoder is None:
                from grpo_guard.judge.backends.chat_ids import ChatEncoder

                # Encodes contents separately from the template, so that a token spelled out in a
                # completion does not become a special token.
                self._encoder = ChatEncoder(llm.get_tokenizer())
            prompts = [self._encoder.encode(request.messages) for request in requests]
            # The engine refuses a whole batch if one prompt is too long, so overlong prompts are
            # left out: one author must not cost everyone else their verdicts.
            fits = [
                len(ids) + request.max_tokens <= longest
                for ids, request in zip(prompts, requests, strict=True)
            ]
            asked = [(ids, r) for ids, r, fit in zip(prompts, requests, fits, strict=True) if fit]
            outputs = iter(
                llm.generate(
                    [{"prompt_token_ids": ids} for ids, _ in asked],
                    [_sampling(request) for _, request in asked],
                    use_tqdm=False,
                )
                if asked
                else ()
            )
            return [
                _reply(next(outputs)) if fit else Reply("", finish_reason="overlong")
                for fit in fits
            ]

    def _loaded(self) -> Any:
        if self._llm is not None:
            return self._llm
        try:
            from vllm import LLM
        except ImportError:
            raise JudgeSetupError(
                "backend 'vllm' needs vLLM: pip install 'grpo-guard[vllm]'"
            ) from None
        arguments = {"max_logprobs": 20, "generation_config": "vllm", **self.engine}
        if self.revision:
            arguments["revision"] = self.revision
        warn_unpinned(self.model, arguments.get("revision"))
        try:
            self._llm = LLM(model=self.model, **arguments)
        except (OSError, ValueError) as error:
            raise JudgeSetupError(
                f"backend 'vllm': expected a model that loads, got {self.model!r}: {error!s:.300}"
            ) from None
        except RuntimeError as error:
            raise BackendError(
                f"the engine did not start: {error!s:.300}",
                cause=Cause.OUT_OF_MEMORY,
                retry=False,
            ) from None
        return self._llm

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_llm": None, "_encoder": None}


def _sampling(request: Request) -> Any:
    from vllm import SamplingParams

    options: dict[str, Any] = {
        "temperature": 0.0,
        "max_tokens": request.max_tokens,
        "logprobs": request.top_logprobs or None,
    }
    if request.json_schema is not None:
        from vllm.sampling_params import StructuredOutputsParams

        options["structured_outputs"] = StructuredOutputsParams(json=dict(request.json_schema))
    return SamplingParams(**options)


def _reply(output: Any) -> Reply:
    answer = output.outputs[0]
    first = None
    if answer.logprobs:
        listed = answer.logprobs[0].values()
        first = tuple((entry.decoded_token or "", float(entry.logprob)) for entry in listed)
    return Reply(
        text=answer.text,
        first_token=first,
        finish_reason=answer.finish_reason,
        tokens_in=len(output.prompt_token_ids or ()),
        tokens_out=len(answer.token_ids),
    )
