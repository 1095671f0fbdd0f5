"""An engine actor in a separate process, under the real Ray, with OpenRLHF's own group call."""

import ray

from tests.openrlhf import openrlhf_parts as parts


@ray.remote
class Worker:
    def __init__(self, agent_file, texts):
        self.engine = parts.Engine(*texts)
        self.actor = parts.actor(self.engine, agent_file)

    async def generate_responses(self, **given):
        return await self.actor.generate_responses(**given)

    def shown(self):
        batches = self.actor.executor.guard.verifier.batches
        return [[(c.prompt, c.group, c.slot) for c in batch] for batch in batches]
