"""A browser for the report's pages."""

from tests.support.browser import browser

__all__ = ["browser"]  # a fixture
