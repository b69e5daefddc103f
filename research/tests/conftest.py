"""Triton is set up, and garbage collection made cheap, as for the tests of the product."""

from tests.conftest import pytest_collection_finish  # noqa: F401
