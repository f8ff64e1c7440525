"""What a block of a test is expected to raise, log or print."""

import contextlib
import io
import logging


class raises:
    """The block has to raise `kind` with a message that holds all texts; `error` is what it
    raised.
    """

    def __init__(self, kind, *texts):
        self.kind = kind
        self.texts = texts
        self.error = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert error is not None, "nothing was raised, expected {}".format(self.kind.__name__)
        if not isinstance(error, self.kind):
            return False
        self.error = error
        for text in self.texts:
            assert text in str(error), "{!r} lacks {!r}".format(str(error), text)
        return True


@contextlib.contextmanager
def logged(level=logging.INFO):
    """The lines that the package logs within the block, on any rank."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append("{}: {}".format(record.levelname, record.getMessage()))

    logger, keep = logging.getLogger("TNT_LIB"), Keep()
    before, propagate = logger.level, logger.propagate
    logger.addHandler(keep)
    logger.setLevel(level)
    logger.propagate = False
    handlers = [handler for handler in logger.handlers if handler is not keep]
    for handler in handlers:
        logger.removeHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(keep)
        for handler in handlers:
            logger.addHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagate


@contextlib.contextmanager
def printed():
    """What is written to standard output within the block."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield text
