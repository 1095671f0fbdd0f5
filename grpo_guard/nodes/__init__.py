"""Evidence per node, accumulated over rounds: patterns that no single completion shows."""
