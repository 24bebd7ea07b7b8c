"""Freed memory, kept for the next round; in processes of their own."""

import os
import subprocess
import sys

import pytest

from fedjax_adapt.engine import xla

PAGES = """
import resource, sys
from fedjax_adapt.engine.xla import keep_memory, keeps_memory
said = keep_memory() if sys.argv[1] == "keep" else keeps_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(2**27)
before = faults()
for _ in range(5):
    bytearray(2**27)
print(said, keeps_memory(), faults() - before)
"""


def pages(word, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in xla.MALLOC_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", PAGES, word],
        capture_output=True,
        text=True,
        env=environment | variables,
        check=True,
    )
    said, kept, count = done.stdout.split()
    return said, kept, int(count)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_blocks_are_used_again_without_new_pages():
    said, kept, with_pages = pages("leave")
    assert (said, kept) == ("False", "False")
    said, kept, few = pages("keep")
    assert (said, kept) == ("True", "True")
    assert few < with_pages / 10
    # what the user has set stays
    assert pages("keep", MALLOC_TRIM_THRESHOLD_="1000")[0] == "True"
