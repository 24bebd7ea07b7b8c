"""`python -m fedjax_adapt` is `fedjax-adapt`."""

from .cli import run_process

run_process()
