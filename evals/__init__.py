"""The poisoning eval suite."""
