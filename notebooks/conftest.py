"""All notebooks are slow tests."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks them before `-m` selects."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("slow")
