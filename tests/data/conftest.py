"""What tests of readers share."""

import socket

import pytest


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """Nothing may open the network, and TFDS's own folder is an empty one."""
    from tensorflow_datasets.core import constants

    def refuse(*args, **kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("FEDJAX_ADAPT_DATA", raising=False)
    monkeypatch.setattr(constants, "DATA_DIR", str(tmp_path / "default"))
