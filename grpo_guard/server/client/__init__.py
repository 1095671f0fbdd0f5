"""A guard served by another machine, as a verifier (``docs/serve.md``)."""
