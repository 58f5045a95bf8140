import pytest

from tests.report.browser import a_browser


@pytest.fixture(scope="session")
def browser():
    with a_browser() as browser:
        yield browser
