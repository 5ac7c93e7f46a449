"""Output of commands: whole files, JSON, Markdown, figures for print."""
