"""Programs that computed the published figures from rows and a verifier; not in the wheel."""
