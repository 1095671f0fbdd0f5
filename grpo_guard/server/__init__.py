"""The guard over HTTP: OpenRLHF's reward protocol, and verdicts for anybody (``docs/serve.md``)."""
