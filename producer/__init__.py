"""The command line that hands runs in and takes completions out: `producer …`."""
