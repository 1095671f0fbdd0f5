"""Is there a span in this text that a reference model finds foreign to the rest of it?"""
