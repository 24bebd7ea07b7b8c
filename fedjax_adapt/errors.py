"""The errors of this package that a user can mend; any other exception is a bug."""


class SettingError(ValueError):
    """A setting, an argument or a file that cannot be used: one sentence.

    Attributes:
      setting: its name, with which the sentence begins; None where it has none.
    """

    def __init__(self, sentence: str, setting: str | None = None):
        """`sentence` says what came and what to write instead."""
        super().__init__(sentence)
        self.setting = setting


class RunError(RuntimeError):
    """The end of a run that had begun: one sentence."""


def one_line(error: BaseException) -> str:
    """The text of an error, for the middle of a sentence."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for the middle of a sentence."""
    return str(error).strip().partition("\n")[0].rstrip(".")
