"""Command line: options, printing, exit codes. Each command loads its package when it is called."""
