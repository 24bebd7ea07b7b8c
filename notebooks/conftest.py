"""All notebooks but the quickstart are slow tests."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks them before `-m` selects."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.path.name.startswith("00_"):
            item.add_marker("slow")
