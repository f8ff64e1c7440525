"""Every piece of Python in docs/training.md, run as it stands; pieces below one heading belong
together.
"""

import os
import re

from cases import case, run

PAGE = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "training.md"
)


def pieces():
    """Heading, first line and text of each piece."""
    heading, begin, text = "", 0, None
    with open(PAGE, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("## "):
                heading = line[3:].strip()
            elif line.startswith("```python"):
                begin, text = number, []
            elif line.startswith("```") and text is not None:
                yield heading, begin, "".join(text)
                text = None
            elif text is not None:
                text.append(line)


def register():
    """A case for each piece, named after its heading and line."""
    spaces = {}
    for heading, begin, text in pieces():
        space = spaces.setdefault(heading, {"__name__": "snippet"})

        def piece(text=text, begin=begin, space=space):
            # Empty lines before it, so that tracebacks have the lines of the page.
            exec(compile("\n" * begin + text, PAGE, "exec"), space)

        piece.__name__ = "line_{}_{}".format(begin, re.sub(r"\W+", "_", heading.lower()))
        case(piece)
    assert spaces, "the page has no Python"


register()

if __name__ == "__main__":
    run()
