"""Is there anybody? Asked once, before thousands of files are asked for in vain."""

import time
from urllib.parse import urlsplit

import requests

from data.download.responses import is_unreachable, reason_of
from retinanet.errors import InputError

PAUSES = (1.0, 2.0, 0.0)
"""After each attempt. [s]"""


def check_reachable(url: str, *, timeout: float) -> None:
    """Let any answer pass, a refusal too: there is somebody.

    Raises InputError naming the server if there was no connection in three attempts.
    """
    reason = ""
    for pause in PAUSES:
        try:
            requests.head(url, timeout=timeout).close()
        except requests.RequestException as error:
            if not is_unreachable(error):
                return  # fetching will see, and say, what it is
            reason = reason_of(error)
            time.sleep(pause)
        else:
            return
    parts = urlsplit(url)
    raise InputError(
        f"{parts.scheme}://{parts.netloc} cannot be reached: {reason}; check the network and the "
        "proxy (HTTPS_PROXY), or name another server with --mirror"
    )
