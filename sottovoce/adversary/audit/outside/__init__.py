"""The audit of what other people claim of their software: any program, any function, a claim, and draws."""
