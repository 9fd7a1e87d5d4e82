import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment would be asked for 127.0.0.1 too."""
    monkeypatch.setenv("NO_PROXY", "*")
