"""What failed in a run, grouped by reason, what the failing prompts share, and what to do."""
