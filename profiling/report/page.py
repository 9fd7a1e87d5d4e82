"""A page from its sections: one file that loads nothing and runs nothing but its own script."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from profiling.report.blocks import Section
from retinanet.printable import printable

TEMPLATES = Path(__file__).parent / "templates"


def render_page(sections: Sequence[Section], *, title: str, summary: Sequence[str]) -> str:
    """The whole page as HTML.

    Args:
        sections: In the order in which a person reads them.
        title: Heading and name of the page.
        summary: Sentences for who reads no further.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    environment.filters["with_code"] = with_code
    return environment.get_template("page.html").render(
        sections=sections,
        headings={section.name: section.heading for section in sections},
        title=title,
        summary=summary,
        markup=Markup,
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
    )


def harmless(value: object) -> object:
    """Text without control characters and marks that turn the direction of writing."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def with_code(text: str) -> Markup:
    """Text in which `what stands between backticks` is code; everything is escaped."""
    pieces = enumerate(printable(text).split("`"))
    marked = (Markup("<code>{}</code>" if place % 2 else "{}").format(one) for place, one in pieces)
    return Markup("").join(marked)


def content_policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which only these two work, and nothing is ever loaded."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{digest(style)}'",
            f"script-src '{digest(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def digest(text: str) -> str:
    """A hash as policies have it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
