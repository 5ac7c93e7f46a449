"""How commands write: whole files, JSON, Markdown, figures for print."""
