"""An agent loop whose answers are in the data set: verl's rollout without a model."""

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput


class CannedLoop:
    def __init__(self, tokenizer, **more):
        self.tokenizer = tokenizer

    async def run(self, sampling_params, *, raw_prompt, said, session_id=None, **more):
        said = said[session_id] if session_id is not None else said
        if said == "abort":
            raise RuntimeError("the environment is gone")
        prompt = self.tokenizer(raw_prompt[0]["content"])["input_ids"]
        outputs = [self._output(prompt, turns) for turns in said.split(" | ")]
        if "own reward" in said:
            outputs[-1].reward_score = 9.0
        return outputs if len(outputs) > 1 else outputs[0]

    def _output(self, prompt, said):
        """Turns of the model, with a tool's answers in brackets between them."""
        ids, mask = [], []
        for part in said.replace("[", "\0[").replace("]", "]\0").split("\0"):
            tokens = self.tokenizer(part)["input_ids"]
            ids += tokens
            mask += [int(not part.startswith("["))] * len(tokens)
        return AgentLoopOutput(
            prompt_ids=list(prompt),
            response_ids=ids,
            response_mask=mask,
            response_logprobs=[-0.5] * len(ids),
            metrics=AgentLoopMetrics(),
            num_turns=4 if "[" in said else 2,
            extra_fields={},
        )
