"""From files of many shapes to prompts: lines, then rows, then prompts or rejects."""
