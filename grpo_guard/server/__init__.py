"""The guard over HTTP: OpenRLHF's reward protocol and verdicts (``docs/serve.md``)."""
