"""What accuracy costs: FNR-FL's kappa and rho."""


def kappa(accuracy: float, seconds: float) -> float:
    """Accuracy by time: accuracy times 1e4 over seconds, as FNR-FL's Table 3 has it.

    Seconds on one clock compare with those on no other.
    """
    return 1e4 * accuracy / seconds


def rho(accuracy: float, num_bytes: float) -> float:
    """Accuracy by traffic: accuracy times 1e4 over MiB, as FNR-FL's Table 3 has it.

    The traffic is all that clients receive and send; the table's "MB" are 2**20 bytes.
    """
    return 1e4 * accuracy / (num_bytes / 2**20)
