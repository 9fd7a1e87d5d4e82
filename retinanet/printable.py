"""Text from files, logs and the environment, made fit for a terminal, a picture or a page."""

import re

LONGEST = 2000
"""Characters of a line that is said of a mistake."""
KEPT_OF_THE_END = 500
"""Of those: what is to be done about it stands at the end."""
BREAKS = re.compile(r"\s*[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]\s*")


def printable(text: str) -> str:
    """The text, with a � for each character that is not printed: control characters, escape
    sequences, marks that turn the direction of writing, halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def one_line(text: str) -> str:
    """The text as one printable line of at most `LONGEST` characters; its middle is left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - KEPT_OF_THE_END - 3]} … {text[-KEPT_OF_THE_END:]}"
    return printable(BREAKS.sub(" ", text.strip()).replace("\t", " "))
