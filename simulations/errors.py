"""Mistakes that a user can make and mend."""


class UserError(ValueError):
    """One line that says what is wrong, where, and what to do. The command prints it and exits with 2."""


class Interrupted(Exception):
    """Ctrl-C, after something has been done that is kept: one line that says how to go on."""
