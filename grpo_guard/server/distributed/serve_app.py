"""The guard's HTTP server as a Ray Serve application."""

from pathlib import Path
from typing import Any, Final

from grpo_guard.config import GuardConfig
from grpo_guard.server.distributed.cluster import require_ray
from grpo_guard.server.limits import Limits

# Requests wait in the guard's own queue, which is bounded and answers with Retry-After when full.
# Serve's default of a few at a time would leave nothing to judge together.
_ONGOING: Final = 1_024


def application(
    config: str | Path, *, token: str | None = None, limits: Limits | None = None, **options: Any
) -> Any:
    """Build a Ray Serve application with the paths of ``grpo-guard serve``.

    Each replica builds the guard, from the file as it is now. Replicas share what they remember
    about nodes only through a ``state`` folder on one machine; without a shared folder, use a
    single replica, because several replicas would not know what the others saw.

    Args:
        config: Path of the guard file, in YAML.
        token: Token required in every request except those to ``/health``, ``/docs`` and
            ``/openapi.json``; None if no token is needed.
        limits: Limits on what a request may cost.
        **options: Options of ``serve.deployment``, such as ``num_replicas``.

    Raises:
        RayMissingError: Ray is not installed.
        ModuleNotFoundError: Ray Serve's packages are missing: ``pip install 'ray[serve]'``.
        ConfigError: the file is wrong.

    Examples:
        >>> serve.run(application("guard.yaml", ray_actor_options={"num_gpus": 1}))
    """
    require_ray("Ray Serve")
    from ray import serve

    text, name = Path(config).read_text(encoding="utf-8"), str(config)
    GuardConfig.from_text(text, name)  # report a mistake here rather than in a replica

    def build() -> Any:
        from grpo_guard.server.app import create_app

        guard = GuardConfig.from_text(text, name).build()
        return create_app(guard, token=token, limits=limits)

    options = {"name": "grpo-guard", "max_ongoing_requests": _ONGOING, **options}
    return serve.deployment(**options)(serve.ingress(build)()).bind()
