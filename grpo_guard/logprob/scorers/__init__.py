"""Scorers, which compute per-token statistics; one file per engine."""
