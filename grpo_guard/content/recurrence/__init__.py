"""Recurrence: what one node says in answer to different prompts and the others do not."""
