"""Evidence per node over rounds: what no single completion shows."""
