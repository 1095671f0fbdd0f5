"""A guard that another machine serves, as a verifier (``docs/serve.md``)."""
