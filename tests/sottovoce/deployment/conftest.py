"""Fixtures of the shuffler, whose service is tested here."""

from tests.simulations.shuffler.conftest import store as store
