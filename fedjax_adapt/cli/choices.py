"""`fedjax-adapt list`."""

from ..errors import SettingError


def list_choices(arguments: list[str]) -> int:
    """`fedjax-adapt list`: everything that can be chosen by name."""
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: fedjax-adapt list\n\nEverything a run can be told by name.")
        return 0
    if arguments:
        raise SettingError(f"list takes no arguments, so leave {arguments[0]!r} out.")
    from ..experiment.options import catalogue

    for title, lines in catalogue().items():
        print(title)
        for name, summary in lines.items():
            print(f"  {name:<18} {summary}")
    return 0
