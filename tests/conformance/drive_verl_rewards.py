"""What verl's workers import by name for the conformance cases: rewards and canned answers."""

from tests.conformance.conformance_cases import reward_of
from tests.verl.canned_loop import CannedLoop

LONGER = "!longer"


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """A reward function with verl's signature."""
    return reward_of(solution_str)


class Canned(CannedLoop):
    """Ends every answer with EOS; the mask of an answer marked `LONGER` is one token too long."""

    def _output(self, prompt, said):
        made = super()._output(prompt, said.removesuffix(LONGER))
        made.response_ids = [*made.response_ids, self.tokenizer.eos_token_id]
        made.response_mask = [*made.response_mask, 1]
        made.response_logprobs = [*made.response_logprobs, -0.5]
        if said.endswith(LONGER):
            made.response_mask = [*made.response_mask, 1]
        return made
