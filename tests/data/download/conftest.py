import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove proxies from the environment, which would also be used for 127.0.0.1."""
    monkeypatch.setenv("NO_PROXY", "*")
