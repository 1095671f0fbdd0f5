"""Verification across several processes or machines with Ray."""

from grpo_guard.server.distributed.ahead import on_ray
from grpo_guard.server.distributed.verifier import RayVerifier

__all__ = ["RayVerifier", "on_ray"]
