"""Data: where it comes from, who holds it, and how it lies on the device."""

from .clients import ClientNoise as ClientNoise
from .clients import ClientTests as ClientTests
from .clients import feature_noise as feature_noise
from .corrupt import CORRUPTIONS as CORRUPTIONS
from .corrupt import corrupt as corrupt
from .dataset import FederatedDataset as FederatedDataset
from .partition import PARTITIONS as PARTITIONS
from .partition import Skew as Skew
from .partition import skew as skew
from .partition import split as split
from .public import PublicSet as PublicSet
from .source import PROTOCOLS as PROTOCOLS
from .source import Held as Held
from .source import Source as Source
from .source import holdout as holdout
from .source import published as published
from .source import split_test as split_test
from .sources import SOURCES as SOURCES
from .sources import load as load
