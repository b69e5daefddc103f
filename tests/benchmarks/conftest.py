"""Files of benchmarks/ as modules."""

import importlib

import pytest


@pytest.fixture
def benchmark():
    """Imports a file of benchmarks/ by name, in the test: some of them set environment variables."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")
