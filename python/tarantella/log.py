"""The loggers TNT_LIB (the package) and TNT_CLI (the command).

Lines go to standard error: `[TNT_LIB] WARNING: [rank 0] model.py:42: text`. Only the master logs,
unless TNT_LOG_ON_ALL_DEVICES is set.
"""

import logging
import sys

from . import settings

LIBRARY = "TNT_LIB"


class _StandardError(logging.StreamHandler):
    """Writes to what sys.stderr is at the time, so redirected output is obeyed."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


class _MasterOnly(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        from . import ranks

        record.rank = ranks.get_rank()
        if getattr(record, "every_rank", False):
            return True
        return settings.get().log_on_all_devices or ranks.is_master_rank()


def logger() -> logging.Logger:
    """The logger of the package."""
    return logging.getLogger(LIBRARY)


def set_up() -> None:
    """Gives the logger its level and its handler, once."""
    own = logger()
    own.setLevel(settings.get().log_level)
    if not any(isinstance(handler, _StandardError) for handler in own.handlers):
        handler = _StandardError()
        handler.setFormatter(
            logging.Formatter(
                "[%(name)s] %(levelname)s: [rank %(rank)d] %(filename)s:%(lineno)d: %(message)s"
            )
        )
        handler.addFilter(_MasterOnly())
        own.addHandler(handler)
        own.propagate = False


def every_rank() -> dict:
    """`extra` for a line that each rank writes, such as the report of an error."""
    return {"every_rank": True}
