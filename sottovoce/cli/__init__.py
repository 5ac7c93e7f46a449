"""Command line: options, printing, exit codes. Each command loads its room when it is called."""
