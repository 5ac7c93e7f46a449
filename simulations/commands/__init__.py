"""The command line: options, printing, exit codes; no logic of its own."""
