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
from .protocols import PROTOCOLS as PROTOCOLS
from .protocols import Held as Held
from .protocols import holdout as holdout
from .protocols import published as published
from .protocols import split_test as split_test
from .public import PublicSet as PublicSet
from .source import Source as Source
from .sources import SOURCES as SOURCES
from .sources import SourceSpec as SourceSpec
from .sources import load as load
