"""Audits of claims about external software: any program or function, with a claim and draws."""
